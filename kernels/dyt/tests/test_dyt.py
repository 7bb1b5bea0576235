"""The built package through the user's door: kernels/conftest.py loads it."""

import pytest
import torch
from torch import nn

LIMIT = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}  # two roundings; float32: sums


def close(got, want, scale=None):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= LIMIT[got.dtype] * (want.double().norm() if scale is None else scale)


class Stock(nn.Module):
    def __init__(self, dim, beta, dtype):
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), 0.5, dtype=dtype))
        self.gamma = nn.Parameter(torch.randn(dim, dtype=dtype))
        self.beta = nn.Parameter(torch.randn(dim, dtype=dtype)) if beta else None


@pytest.mark.parametrize("beta", [True, False])
@pytest.mark.parametrize("dtype", LIMIT)
def test_layer_forward_and_backward(package, ops, dtype, beta):
    layer = Stock(40, beta, dtype)
    x = torch.randn(3, 7, 40, dtype=dtype, requires_grad=True)
    before = {op: ops.call_count(op) for op in ("dyt", "dyt_bwd")}
    y = package.layers.DyT.forward(layer, x)
    dy = torch.randn_like(y)
    inputs = [x, *layer.parameters()]
    gradients = torch.autograd.grad(y, inputs, dy)
    assert {op: ops.call_count(op) - n for op, n in before.items()} == dict.fromkeys(before, 1)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    want = (wide[1] * wide[0]).tanh() * wide[2] + (wide[3] if beta else 0)
    close(y, want)
    expected = torch.autograd.grad(want, wide, dy.double())
    # Alpha's is one sum of both signs, which may be near zero: it is rounded as its terms are.
    terms = (dy.double() * wide[2] * (1 - (wide[1] * wide[0]).tanh() ** 2) * wide[0]).detach()
    for i, (a, b) in enumerate(zip(gradients, expected, strict=True)):
        close(a, b, terms.norm() if i == 1 else None)


def test_opcheck(ops):
    x, gamma = torch.randn(4, 24, requires_grad=True), torch.randn(24, requires_grad=True)
    alpha = torch.ones(1, requires_grad=True)
    torch.library.opcheck(ops.dyt.default, (x, alpha, gamma, None))
    torch.library.opcheck(ops.dyt.default, (x.detach().bfloat16(), alpha, gamma, gamma.detach()))
    torch.library.opcheck(ops.dyt_bwd.default, tuple(t.detach() for t in (x, x, alpha, gamma)))


def test_errors_name_what_was_wanted(package):
    x, alpha = torch.randn(3, 8), torch.ones(1)
    with pytest.raises(RuntimeError, match=r"expected gamma \[8\]; got \[7\]"):
        package.dyt(x, alpha, torch.ones(7))
    with pytest.raises(RuntimeError, match=r"expected alpha \[1\]; got \[8\]"):
        package.dyt(x, torch.ones(8), torch.ones(8))
