"""The built package through the user's door: kernels/conftest.py loads it."""

import pytest
import torch
from transformers import activations

LIMIT = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # one rounding; float32: a few
LAYERS = {  # layer -> op, transformers' module
    "SiLU": ("silu", activations.SiLUActivation),
    "GeLU": ("gelu", activations.GELUActivation),
    "GeluTanh": ("gelu_tanh", activations.GELUTanh),
    "NewGELU": ("gelu_new", activations.NewGELUActivation),
    "FastGELU": ("gelu_fast", activations.FastGELUActivation),
    "QuickGELU": ("gelu_quick", activations.QuickGELUActivation),
    "ReLUSquared": ("relu_squared", activations.ReLUSquaredActivation),
}
AND_MUL = {"SiluAndMul": ("silu_and_mul", "SiLU"), "GeluAndMul": ("gelu_and_mul", "GeLU"), "GeluTanhAndMul": ("gelu_tanh_and_mul", "GeluTanh")}


def stock(layer):
    if layer in LAYERS:
        return LAYERS[layer][1]()
    act = stock(AND_MUL[layer][1])
    return lambda x: act(x.chunk(2, dim=-1)[0]) * x.chunk(2, dim=-1)[1]


@pytest.mark.parametrize("layer", [*LAYERS, *AND_MUL])
@pytest.mark.parametrize("dtype", LIMIT)
def test_layer_forward_and_backward(package, ops, layer, dtype):
    op = (LAYERS | AND_MUL)[layer][0]
    before = ops.call_count(op), ops.call_count(f"{op}_bwd")
    x = torch.randn(3, 5, 42, dtype=dtype, requires_grad=True)
    y = getattr(package.layers, layer)()(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    assert (ops.call_count(op), ops.call_count(f"{op}_bwd")) == (before[0] + 1, before[1] + 1)
    x2 = x.detach().double().requires_grad_()
    want = stock(layer)(x2)
    want.backward(dy.double())
    for got, expected in ((y, want), (x.grad, x2.grad)):
        assert got.dtype == dtype and got.shape == expected.shape
        assert (got.double() - expected).norm() <= LIMIT[dtype] * expected.norm()


@pytest.mark.parametrize("op", [row[0] for row in (LAYERS | AND_MUL).values()])
def test_opcheck(ops, op):
    x = torch.randn(4, 26, requires_grad=True)
    torch.library.opcheck(getattr(ops, op).default, (x,))
    torch.library.opcheck(getattr(ops, op).default, (torch.randn(2, 3, 8).transpose(0, 1).requires_grad_(),))
    dy = torch.randn(4, 13 if op.endswith("and_mul") else 26)
    torch.library.opcheck(getattr(ops, f"{op}_bwd").default, (dy, x.detach()))


def test_names_of_the_hub_package(package):
    assert package.layers.Silu is package.layers.SiLU and package.layers.Gelu is package.layers.GeLU


def test_compiles_without_graph_breaks(package):
    layer = package.layers.GeluTanhAndMul()
    x = torch.randn(4, 32)
    assert torch.equal(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))
