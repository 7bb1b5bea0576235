"""Liger's names for rows of probabilities and for channels, each against plain torch; and where they are imported from."""

import subprocess
import sys

import pytest
import torch
from chunked import close, seeded  # noqa: F401
from torch.nn import functional as F

import hotswap

LABELS = torch.arange(12) % 4  # 3 is ignored


def rows(log=True):
    z = [torch.randn(12, 33) for _ in range(2)]
    x, target = ((t.log_softmax(-1) if log else t.softmax(-1)) for t in z)
    return x.requires_grad_(), target


def same(got, x, want, wide):
    close(got, want, 1e-5)
    d = torch.rand_like(got)
    (dx,) = torch.autograd.grad(want, wide, d.double(), retain_graph=True)
    close(torch.autograd.grad(got, x, d, retain_graph=True)[0], dx, 1e-5)


@pytest.mark.parametrize("reduction", ["batchmean", "mean", "sum", "none"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(reduction, log_target):
    x, target = rows()
    target = target if log_target else target.exp()
    wide = x.detach().double().requires_grad_()
    want = F.kl_div(wide, target.double(), reduction=reduction, log_target=log_target)
    options = dict(reduction=reduction, log_target=log_target)
    same(hotswap.LigerKLDIVLoss(**options)(x, target), x, want, wide)
    same(hotswap.liger_kl_div(x, target, **options), x, want, wide)


@pytest.mark.parametrize("reduction", ["batchmean", "mean", "sum", "none"])
def test_tvd(reduction):
    x, target = rows(log=False)
    wide = x.detach().double().requires_grad_()
    want = (wide - target.double()).abs() / 2 * (LABELS != 3)[:, None]
    if reduction != "none":
        want = want.sum() / {"sum": 1, "batchmean": 9, "mean": 9 * 33}[reduction]
    same(hotswap.LigerTVDLoss(reduction, ignore_index=3)(x, target, LABELS), x, want, wide)
    same(hotswap.liger_tvd(x, target, LABELS, reduction, 3), x, want, wide)
    with pytest.raises(ValueError, match="batchmean"):
        hotswap.LigerTVDLoss("average")


@pytest.mark.parametrize("beta", [0.0, 0.2, 1.0])
def test_jsd(beta):
    x, target = rows()
    wide, t = x.detach().double().requires_grad_(), target.double()
    m = (beta * t.exp() + (1 - beta) * wide.exp()).log()
    if beta in (0, 1):
        term = t.exp() * (t - wide) if beta == 0 else wide.exp() * (wide - t)
    else:
        term = beta * t.exp() * (t - m) + (1 - beta) * wide.exp() * (wide - m)
    want = term.sum(-1)[LABELS != 3].mean()
    same(hotswap.LigerJSD(beta, ignore_index=3)(x, target, LABELS), x, want, wide)
    same(hotswap.liger_jsd(x, target, LABELS, beta, 3), x, want, wide)
    assert hotswap.liger_jsd(x.bfloat16(), target.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="beta"):
        hotswap.LigerJSD(beta=2)


def test_softmax_and_sparsemax():
    x = torch.randn(4, 5, 7, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    same(hotswap.LigerSoftmax()(x), x, wide.softmax(-1), wide)
    y = hotswap.LigerSparsemax(dim=1)(x)
    close(y.sum(1), torch.ones(4, 7), 1e-6)
    assert (y == 0).any() and torch.equal(y, hotswap.liger_sparsemax(x, 1))


@pytest.mark.parametrize("shape", [(3, 12, 5), (2, 12, 4, 3)])
def test_group_norm(shape):
    layer, x = hotswap.LigerGroupNorm(12, 4, bias=True), torch.randn(shape, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    groups = wide.reshape(shape[0], 4, -1)
    n = (groups - groups.mean(-1, keepdim=True)) / (groups.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
    channel = (12, *(1,) * (len(shape) - 2))
    want = n.reshape(shape) * layer.weight.double().view(channel) + layer.bias.double().view(channel)
    same(layer(x), x, want, wide)
    for wrong in (lambda: hotswap.LigerGroupNorm(12, 5), lambda: layer(x[:, :8]), lambda: layer(x[0, :, 0])):
        with pytest.raises(ValueError, match="expected .*; got "):
            wrong()


@pytest.mark.parametrize("beta", [True, False])
def test_dyt(beta):
    layer, x = hotswap.LigerDyT(9, beta), torch.randn(4, 5, 9, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    same(layer(x), x, (wide / 2).tanh(), wide)
    assert torch.equal(hotswap.liger_dyt(x, layer.alpha, layer.gamma, layer.beta), layer(x))
    layer(x).sum().backward()
    assert all(p.grad.shape == p.shape for p in layer.parameters()) and len(list(layer.parameters())) == 2 + beta


IMPORTS = """
import hotswap
hotswap.enable_for_trainer()
from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss, LigerFusedLinearGRPOLoss, LigerFusedLinearKTOLoss
from liger_kernel.chunked_loss.functional import liger_fused_linear_jsd as of_hidden
from liger_kernel.transformers import LigerFusedLinearJSD, LigerRMSNorm, LigerSoftmax, apply_liger_kernel_to_llama
from liger_kernel.transformers.functional import liger_fused_linear_jsd, liger_kl_div
from liger_kernel.chunked_loss.dpo_loss import LigerFusedLinearDPOLoss as again
from liger_kernel.transformers.group_norm import LigerGroupNorm
from liger_kernel.transformers.grpo_loss import triton_grpo_loss
from liger_kernel.transformers.kl_div import LigerKLDIVLoss
from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance
assert LigerFusedLinearDPOLoss is hotswap.LigerFusedLinearDPOLoss and LigerSoftmax is hotswap.LigerSoftmax
assert of_hidden is hotswap.chunked_loss.liger_fused_linear_jsd
assert liger_fused_linear_jsd is hotswap.liger_fused_linear_jsd is not of_hidden
assert "LigerFusedLinearSimPOLoss" in dir(hotswap) and "LigerJSD" in dir(hotswap)
try:
    from liger_kernel.chunked_loss import LigerNothing
except ImportError as error:
    print(error)
"""


def test_imports():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "LigerNothing" in done.stdout
