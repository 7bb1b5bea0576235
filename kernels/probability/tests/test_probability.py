"""The built package through the user's door: kernels/conftest.py loads it."""

import math

import pytest
import torch
from torch.nn import functional as F

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LIMIT = {torch.float32: 5e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}  # two roundings; float32: sums


def close(got, want, limit):
    assert got.shape == want.shape
    allowed = limit * want.double().norm() + 1e-9
    if got.dtype == torch.float16:
        allowed += 2**-25 * want.numel() ** 0.5  # its subnormals
    assert (got.double() - want.double()).norm() <= allowed


def above_threshold(x):
    """By sorting, as the paper has it."""
    z, cols = x.double().sort(-1, descending=True).values, x.shape[-1]
    k = ((1 + torch.arange(1, cols + 1) * z) > z.cumsum(-1)).sum(-1, keepdim=True)
    return x.double() - (z.cumsum(-1).gather(-1, k - 1) - 1) / k


def sparse(x):
    return above_threshold(x).clamp(min=0)


def without_ties(*shape, dtype):
    """Rows of which no element is the threshold itself, as one of 16 bits may be: there sparsemax has no one gradient."""
    while True:
        x = torch.randn(*shape, dtype=dtype)
        if above_threshold(x).abs().min() > 1e-6:
            return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_layers(package, ops, name, dtype):
    x = without_ties(3, 7, 40, dtype=dtype).requires_grad_()
    before = {op: ops.call_count(op) for op in (name, f"{name}_bwd")}
    y = getattr(package.layers, name.capitalize())()(x)
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert {op: ops.call_count(op) - n for op, n in before.items()} == dict.fromkeys(before, 1)
    wide = x.detach().double().requires_grad_()
    want = wide.softmax(-1) if name == "softmax" else sparse(wide)
    close(y, want, LIMIT[dtype])
    close(dx, torch.autograd.grad(want, wide, dy.double())[0], 2 * LIMIT[dtype])


@pytest.mark.parametrize("dim", [0, 1, -2, 2])
def test_sparsemax_of_a_dimension(package, dim):
    x = torch.randn(5, 4, 6, requires_grad=True)
    y = package.sparsemax(x, dim)
    close(y, sparse(x.detach().transpose(dim, -1)).transpose(dim, -1), 1e-6)
    close(y.sum(dim), torch.ones_like(y.sum(dim)), 1e-6)
    assert torch.autograd.grad(y[0].sum(), x)[0].shape == x.shape


def jsd(x, target, beta):
    q, p = x.exp(), target.exp()
    if beta in (0, 1):
        return (p * (target - x) if beta == 0 else q * (x - target)).sum(-1)
    m = (beta * p + (1 - beta) * q).log()
    return (beta * p * (target - m) + (1 - beta) * q * (x - m)).sum(-1)


def rows_of(dtype, log=True):
    x, target = (torch.randn(2, 9, 41).log_softmax(-1) for _ in range(2))
    x, target = (t if log else t.exp() for t in (x, target))
    return x.to(dtype).requires_grad_(), target.to(dtype)


DIVERGENCES = {
    "kl": (lambda p, x, t, **o: p.kl_div(x, t, **o), lambda x, t: F.kl_div(x, t, reduction="none"), True),
    "kl of logs": (
        lambda p, x, t, **o: p.kl_div(x, t, log_target=True, **o),
        lambda x, t: F.kl_div(x, t, reduction="none", log_target=True),
        True,
    ),
    "tvd": (lambda p, x, t, **o: p.tvd(x, t, **o), lambda x, t: (x - t).abs() / 2, False),
}


@pytest.mark.parametrize("reduction", ["batchmean", "mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_divergences(package, name, dtype, reduction):
    ours, theirs, log = DIVERGENCES[name]
    x, target = rows_of(dtype, log)
    if name == "kl":
        target = target.float().exp().to(dtype)
    labels = torch.arange(18) % 5
    for given in (None, labels):
        got = ours(package, x, target, labels=given, ignore_index=3, reduction=reduction)
        assert got.dtype == torch.float32
        wide = x.detach().double().requires_grad_()
        want = theirs(wide, target.double())
        rows = 18
        if given is not None:
            want, rows = want * (given != 3).view(2, 9, 1), int((given != 3).sum())
        if reduction != "none":
            want = want.sum() / {"sum": 1, "mean": rows * 41, "batchmean": rows}[reduction]
        close(got, want, 5e-6)
        dloss = torch.rand_like(got)
        (dx,) = torch.autograd.grad(got, x, dloss)
        close(dx, torch.autograd.grad(want, wide, dloss.double())[0], LIMIT[dtype])


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_jsd(package, dtype, beta):
    x, target = rows_of(dtype)
    labels = torch.arange(18) % 5
    got = package.jsd(x, target, labels, 2, beta)
    wide = x.detach().double().requires_grad_()
    want = jsd(wide, target.double(), beta).view(-1)[labels != 2].mean()
    close(got, want, 5e-6)
    close(torch.autograd.grad(got, x)[0], torch.autograd.grad(want, wide)[0], LIMIT[dtype])


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_jsd_of_logits(package, dtype, beta):
    z, target = torch.randn(9, 41).to(dtype), torch.randn(9, 41).to(dtype)
    wide = z.double().requires_grad_()
    want = jsd((wide / 0.7).log_softmax(-1), (target.double() / 0.7).log_softmax(-1), beta)
    got = package.jsd_of_logits_(z, target, beta, 0.7)
    close(got, want, 5e-6)
    close(z, torch.autograd.grad(want.sum(), wide)[0], LIMIT[dtype])


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("cols", [200, 4096, 40960])  # on a GPU: of a warp, a block, a cluster
@pytest.mark.parametrize("dtype", DTYPES)
def test_jsd_of_logits_masked_or_far_apart(package, dtype, cols, beta):
    """-infinity in both rows, as of a padded vocabulary, or in one of them, where a mean of both is finite; and probabilities
    whose quotient is no float."""
    one_mask = ("target masked", "logits masked") if beta == 0.5 else ()
    for case in ("masked", "far", "one-sided", *one_mask):
        z, target = (torch.randn(4, cols).mul(40 if case == "far" else 2).to(dtype) for _ in range(2))
        for of, rows in (("target", target), ("logits", z)):
            if case in ("masked", f"{of} masked"):
                rows[:, cols // 2 :] = -torch.inf
        if case == "one-sided":
            z[:, 5], target[:, 7], z[:, 9] = 300, 300, -300
        wide = z.double().clamp(min=-1e4).requires_grad_()
        x, t = wide.log_softmax(-1), target.double().clamp(min=-1e4).log_softmax(-1)
        q, p = x.exp(), t.exp()
        m = torch.logaddexp(x, t) - math.log(2)
        terms = p * (t - x) if beta == 0 else q * (x - t) if beta == 1 else (p * (t - m) + q * (x - m)) / 2
        expected = terms.sum(-1)
        got = package.jsd_of_logits_(z, target, beta)
        rounded = 0 if "masked" in case else 2**-14  # the last bit of logarithms of several hundred
        close(got, expected, 5e-6 + rounded)
        (dz,) = torch.autograd.grad(expected.sum(), wide)
        # Where all of a row is in one column its gradient is a difference of equal values.
        assert (z.double() - dz).norm() <= (LIMIT[dtype] + rounded) * (dz.norm() + q.norm())


def test_types_that_differ(package):
    x, target = rows_of(torch.bfloat16)
    assert torch.equal(package.jsd(x, target.float()), package.jsd(x.float(), target.float()))


def test_no_row_counts(package):
    x, target = rows_of(torch.float32)
    loss = package.jsd(x, target, torch.full((18,), -100))
    assert loss == 0 and not torch.autograd.grad(loss, x)[0].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1, 7, 24, 41])
def test_tvd_by_signs(ops, dtype, cols):
    """What training on a GPU keeps gives the bits of the ops that read both rows; a row's sum there has another order."""
    x, target = torch.rand(6, cols).to(dtype), torch.rand(6, cols).to(dtype)
    target[0] = x[0]
    labels = torch.tensor([0, 1, 2, 1, 0, 2])
    for by_element, dloss in ((False, torch.rand(6)), (True, torch.rand(6, cols))):
        options = labels, 1, by_element
        loss, signs = ops.tvd_fwd(x, target, *options)
        read_again = ops.tvd(x, target, *options)
        if loss.is_cuda and not by_element:
            close(loss, read_again, 1e-6)
        else:
            assert torch.equal(loss, read_again)
        counts = dloss * (labels != 1).view(6, *[1] * (dloss.dim() - 1))
        assert torch.equal(ops.tvd_fwd_bwd(counts, signs, cols, dtype, by_element), ops.tvd_bwd(counts, x, target, *options))
    with pytest.raises(RuntimeError, match="expected signs"):
        ops.tvd_fwd_bwd(dloss, signs, cols + 8, dtype, True)


def test_opcheck(ops):
    x, y = torch.randn(4, 24, requires_grad=True), torch.rand(4, 24)
    labels, row = torch.arange(4), torch.rand(4)
    for op, args in (
        (ops.softmax, (x,)),
        (ops.sparsemax, (x,)),
        (ops.softmax_bwd, (y, y)),
        (ops.sparsemax_bwd, (y, y)),
        (ops.kl_div, (x, y, labels, 1, False, 1e-10, False)),
        (ops.kl_div, (x, y, None, 1, True, 1e-10, True)),
        (ops.kl_div_bwd, (row, y, y, None, 1, False, 1e-10, False)),
        (ops.jsd, (x, y, labels, 1, 0.4)),
        (ops.jsd_bwd, (row, y, y, labels, 1, 0.4)),
        (ops.tvd, (x, y, None, 1, False)),
        (ops.tvd_bwd, (y, y, y, None, 1, True)),
        (ops.tvd_fwd, (x, y, None, 1, False)),
        (ops.jsd_of_logits_, (y.clone(), y, 0.5, 1.0)),
    ):
        torch.library.opcheck(op.default, args)


def test_errors_name_what_was_wanted(package, ops):
    x = torch.randn(3, 8)
    with pytest.raises(RuntimeError, match=r"target in the shape of x, \[3, 8\]; got \[3, 7\]"):
        package.jsd(x, x[:, :7])
    with pytest.raises(RuntimeError, match="beta from 0 to 1; got 2"):
        package.jsd(x, x, beta=2.0)
    with pytest.raises(RuntimeError, match=r"labels \[3\] as int64"):
        package.tvd(x, x, torch.zeros(4, dtype=torch.long))
    with pytest.raises(RuntimeError, match="temperature > 0; got 0"):
        package.jsd_of_logits_(x, x, temperature=0.0)
    with pytest.raises(RuntimeError, match="in place"):
        package.jsd_of_logits_(torch.randn(8, 3).t(), x)
    with pytest.raises(RuntimeError, match="float32, bfloat16 or float16"):
        package.softmax(x.double())
    with pytest.raises(ValueError, match="batchmean, mean, sum or none; got 'avg'"):
        package.tvd(x, x, reduction="avg")
