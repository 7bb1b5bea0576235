"""The built package through the user's door: kernels.get_local_kernel. HOTSWAP_PACKAGES = the folder of built packages."""

import copy
import os
import re
from pathlib import Path

import pytest
import torch
from kernels import get_local_kernel

PACKAGE = Path(os.environ["HOTSWAP_PACKAGES"]) / "mlp"
LIMIT = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}  # GEMMs of 16-bit numbers on both sides


@pytest.fixture(scope="module")
def mlp():
    return get_local_kernel(PACKAGE, backend="cpu")


def close(got, want, limit):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= limit * want.double().norm()


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize(
    "name, act, op",
    [("SwiGLUMLP", "silu", "swiglu"), ("LigerSwiGLUMLP", "silu", "swiglu"), ("LigerGEGLUMLP", "gelu_pytorch_tanh", "geglu")],
)
def test_layer_in_place_of_llama_mlp(mlp, dtype, name, act, op):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    ops = mlp._ops.ops
    stock = LlamaMLP(LlamaConfig(hidden_size=48, num_attention_heads=4, intermediate_size=80, hidden_act=act)).to(dtype)
    x = torch.randn(2, 5, 48, dtype=dtype, requires_grad=True)
    before = {o: ops.call_count(o) for o in (op, f"{op}_bwd")}
    y = getattr(mlp.layers, name).forward(stock, x)
    dy = torch.randn_like(y)
    y.backward(dy)
    assert {o: ops.call_count(o) - n for o, n in before.items()} == dict.fromkeys(before, 1)
    wide = copy.deepcopy(stock).double()
    wide.zero_grad()
    x2 = x.detach().double().requires_grad_()
    want = wide(x2)
    want.backward(dy.double())
    close(y, want, LIMIT[dtype])
    close(x.grad, x2.grad, LIMIT[dtype])
    for a, b in zip(stock.parameters(), wide.parameters()):
        close(a.grad, b.grad, LIMIT[dtype])


@pytest.mark.parametrize("name, act, op", [("SwiGLUMLP", "silu", "swiglu"), ("GeGLUMLP", "gelu_pytorch_tanh", "geglu")])
@pytest.mark.parametrize("bias", [False, True])
def test_layouts_are_the_mlp_with_gate_and_up_in_one(mlp, name, act, op, bias):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    config = LlamaConfig(hidden_size=48, num_attention_heads=4, intermediate_size=80, hidden_act=act, mlp_bias=bias)
    stock, layout = LlamaMLP(config), getattr(mlp.layers, f"Packed{name}Layout")(config)
    state = {}
    for key, value in stock.state_dict().items():  # in the order gate, up, down
        packed = re.sub("^(gate|up)_proj", "gate_up_proj", key)
        state[packed] = torch.cat([state[packed], value]) if packed in state else value
    layout.load_state_dict(state)
    x, before = torch.randn(2, 5, 48), mlp._ops.ops.call_count(op)
    want = stock(x)
    close(layout(x), want, 2e-6)
    assert mlp._ops.ops.call_count(op) == before
    close(getattr(mlp.layers, f"Packed{name}").forward(layout, x), want, 2e-6)
    assert mlp._ops.ops.call_count(op) == before + 1
    config.hidden_act = "relu"
    with pytest.raises(ValueError, match="wanted hidden_act of .*; got relu"):
        type(layout)(config)


@pytest.mark.parametrize("op", ["swiglu", "geglu"])
def test_halves_of_a_packed_projection(mlp, op):
    packed = torch.randn(4, 6, 2 * 24, requires_grad=True)
    gate, up = packed.chunk(2, dim=-1)
    y = getattr(mlp, op)(gate, up)
    assert torch.equal(y, getattr(mlp, op)(gate.contiguous(), up.contiguous()))
    y.sum().backward()
    assert packed.grad.abs().min() >= 0 and packed.grad.shape == packed.shape


@pytest.mark.parametrize("op", ["swiglu", "geglu"])
def test_opcheck(mlp, op):
    gate, up = torch.randn(2, 3, 40, requires_grad=True).chunk(2, dim=-1)
    torch.library.opcheck(getattr(mlp._ops.ops, op).default, (gate, up))
