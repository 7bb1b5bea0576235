"""The built package through the user's door: kernels/conftest.py loads it."""

import pytest
import torch
from torch import nn

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LIMIT = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}  # two roundings; float32: sums


def close(got, want):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= LIMIT[got.dtype] * want.double().norm()


def rms_norm(x, weight, eps, offset):
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * (weight + offset)


class StockRMSNorm(nn.Module):
    def __init__(self, dim, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, dtype=dtype))
        self.variance_epsilon = 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_layer_forward_and_backward(package, ops, dtype):
    layer = StockRMSNorm(40, dtype)
    layer.forward = package.layers.RMSNorm.forward.__get__(layer)
    x = torch.randn(3, 7, 40, dtype=dtype, requires_grad=True)
    before = {op: ops.call_count(op) for op in ("rms_norm", "rms_norm_fwd", "rms_norm_bwd")}
    y = layer(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    with torch.no_grad():
        layer(x)
    assert {op: ops.call_count(op) - n for op, n in before.items()} == dict.fromkeys(before, 1)
    x2, w2 = x.detach().double().requires_grad_(), layer.weight.detach().double().requires_grad_()
    want = rms_norm(x2, w2, 1e-6, 0)
    want.backward(dy.double())
    close(y, want)
    close(x.grad, x2.grad)
    close(layer.weight.grad, w2.grad)


def test_layers_as_transformers_names_them(package):
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x = torch.randn(5, 64, dtype=torch.bfloat16)
    for stock_class in (LlamaRMSNorm, GptOssRMSNorm):
        stock = stock_class(64).bfloat16()
        with torch.no_grad():
            stock.weight.normal_()
            want, got = stock(x), package.layers.LigerRMSNorm.forward(stock, x)
        # statistics are summed in another order: a number may round the other way
        assert (got != want).float().mean() < 0.02, stock_class.__name__
        close(got, want)


@pytest.mark.parametrize("op", ["add_rms_norm", "add_rms_norm_fwd"])
def test_add_rms_norm(ops, op):
    inputs = [torch.randn(6, 33, requires_grad=True), torch.randn(6, 33, requires_grad=True), torch.randn(33, requires_grad=True)]
    y, h = getattr(ops, op)(*inputs, 1e-6, 1.0, "gemma")[:2]
    dy, dh = torch.randn_like(y), torch.randn_like(h)
    torch.autograd.backward([y, h], [dy, dh])
    x2, r2, w2 = (t.detach().double().requires_grad_() for t in inputs)
    h2 = x2 + r2
    y2 = rms_norm(h2, w2, 1e-6, 1.0)
    torch.autograd.backward([y2, h2], [dy.double(), dh.double()])
    for got, want in [(y, y2), (h, h2)] + [(a.grad, b.grad) for a, b in zip(inputs, (x2, r2, w2))]:
        close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(package, dtype, bias):
    layer = nn.LayerNorm(48, bias=bias, dtype=dtype)
    with torch.no_grad():
        layer.weight.normal_()
    x = torch.randn(4, 9, 48, dtype=dtype, requires_grad=True)
    y = package.layers.LayerNorm.forward(layer, x)
    dy = torch.randn_like(y)
    y.backward(dy)
    x2, w2 = x.detach().double().requires_grad_(), layer.weight.detach().double().requires_grad_()
    b2 = layer.bias.detach().double().requires_grad_() if bias else None
    want = torch.nn.functional.layer_norm(x2, (48,), w2, b2, layer.eps)
    want.backward(dy.double())
    close(y, want)
    close(x.grad, x2.grad)
    close(layer.weight.grad, w2.grad)
    if bias:
        close(layer.bias.grad, b2.grad)


def test_inference_ops_have_gradients_too(ops):
    x, w = torch.randn(3, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    gradients = []
    for op in (lambda: ops.rms_norm(x, w, 1e-6, 0.0, "llama"), lambda: ops.rms_norm_fwd(x, w, 1e-6, 0.0, "llama")[0]):
        gradients.append(torch.autograd.grad(op().square().sum(), (x, w)))
    for a, b in zip(*gradients):
        assert torch.equal(a, b)
    y = ops.layer_norm(x, w, None, 1e-6)
    assert torch.autograd.grad(y.sum(), w)[0].shape == w.shape


def test_opcheck(ops):
    x, r, w = (torch.randn(s, requires_grad=True) for s in ((4, 24), (4, 24), (24,)))
    rstd = torch.rand(4)
    for op, args in (
        (ops.rms_norm, (x, w, 1e-6, 0.0, "llama")),
        (ops.rms_norm_fwd, (x, w, 1e-6, 0.0, "llama")),
        (ops.rms_norm_fwd, (x.detach().bfloat16(), w, 1e-6, 0.0, "llama")),
        (ops.rms_norm_bwd, (r.detach(), x.detach(), w.detach(), rstd, 0.0, "llama")),
        (ops.add_rms_norm, (x, r, w, 1e-6, 0.0, "gemma")),
        (ops.add_rms_norm_fwd, (x, r, w, 1e-6, 0.0, "gemma")),
        (ops.layer_norm, (x, w, w.detach(), 1e-6)),
        (ops.layer_norm_fwd, (x, w, None, 1e-6)),
        (ops.layer_norm_bwd, (r.detach(), x.detach(), w.detach(), rstd, rstd)),
    ):
        torch.library.opcheck(op.default, args)


def test_strided_input_compiles_to_the_same_strides(ops):
    x, w = torch.randn(4, 6, 32).transpose(0, 1), torch.randn(32)
    eager = ops.rms_norm(x, w, 1e-6, 0.0, "llama")
    compiled = torch.compile(lambda a, b: ops.rms_norm(a, b, 1e-6, 0.0, "llama"), backend="aot_eager", fullgraph=True)(x, w)
    assert eager.stride() == compiled.stride() and torch.equal(eager, compiled)


def test_errors_name_what_was_wanted(package):
    with pytest.raises(RuntimeError, match=r"expected weight \[8\]; got \[7\]"):
        package.rms_norm(torch.randn(3, 8), torch.randn(7), 1e-6, 0.0, "llama")


def test_short_way_is_torchs_own(package, ops):
    """A package's functions skip torch.library's registration (_package.py); values, gradients and modes are the same."""
    leaves = [torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)]
    options = dict(eps=1e-6, offset=0.0, casting="llama")
    dy = torch.randn(3, 8)
    found = [
        (y, *torch.autograd.grad(y, leaves, dy))
        for y in (package.rms_norm(*leaves, *options.values()), package.rms_norm(*leaves, **options), ops.rms_norm(*leaves, *options.values()))
    ]
    for tensors in zip(*found, strict=True):
        assert all(torch.equal(t, tensors[0]) for t in tensors)
    with torch.no_grad():
        assert not package.rms_norm(*leaves, *options.values()).requires_grad
    with torch.inference_mode():
        assert torch.equal(package.rms_norm(*leaves, *options.values()), found[0][0])
    compiled = torch.compile(lambda x, w: package.rms_norm(x, w, *options.values()), backend="aot_eager", fullgraph=True)
    for t, want in zip(torch.autograd.grad(compiled(*leaves), leaves, dy), found[0][1:], strict=True):
        assert torch.equal(t, want)
