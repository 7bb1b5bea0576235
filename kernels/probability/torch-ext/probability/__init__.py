"""Softmax, sparsemax, and how far rows of probabilities are apart: ops with fakes and autograd, layers in `layers`."""

import torch

from . import _package, layers
from ._package import like as _like
from ._package import ops


def sparsemax(x, dim=-1):
    """The nearest distribution to x: most of it is exactly 0."""
    if dim in (-1, x.dim() - 1):
        return ops.sparsemax(x)
    return ops.sparsemax(x.transpose(dim, -1)).transpose(dim, -1)


def _reduced(losses, x, labels, ignore_index, reduction):
    """losses: a number a row, or an element with "none". Means are over the rows whose label counts."""
    if reduction not in ("batchmean", "mean", "sum", "none"):
        raise ValueError(f"expected reduction batchmean, mean, sum or none; got {reduction!r}; pass one of them")
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if labels is None:  # two kernels of a step less than a sum and a division
        mean = losses.mean()
    else:
        mean = losses.sum() / (labels != ignore_index).sum().clamp(min=1)
    return mean if reduction == "batchmean" else mean / x.shape[-1]


def _as_one_type(x, target):
    if x.dtype == target.dtype:
        return x, target
    dtype = torch.promote_types(x.dtype, target.dtype)
    return x.to(dtype), target.to(dtype)


def kl_div(x, target, labels=None, ignore_index=-100, reduction="batchmean", log_target=False, eps=1e-10):
    """KL(target || e^x): x [..., classes] log-probabilities, target probabilities or, log_target, their logarithms. float32;
    of x alone there is a gradient. labels [rows]: rows whose label is ignore_index count nothing."""
    x, target = _as_one_type(x, target)
    losses = ops.kl_div(x, target, labels, ignore_index, log_target, eps, reduction == "none")
    return _reduced(losses, x, labels, ignore_index, reduction)


def jsd(x, target, labels=None, ignore_index=-100, beta=0.5, reduction="batchmean"):
    """The generalized Jensen-Shannon divergence of e^x from e^target, at beta 0 KL(target || x), at 1 KL(x || target);
    reduction "none": a number a row. Else as kl_div."""
    x, target = _as_one_type(x, target)
    return _reduced(ops.jsd(x, target, labels, ignore_index, beta), x, labels, ignore_index, reduction)


def tvd(x, target, labels=None, ignore_index=-100, reduction="batchmean"):
    """The total variation distance of probabilities x [..., classes] from target. Else as kl_div."""
    x, target = _as_one_type(x, target)
    given = x, target, labels, ignore_index, reduction == "none"
    # A GPU's backward is bound by bytes, and signs are a few of them; a CPU reads both rows faster than it unpacks bits.
    by_signs = x.is_cuda and x.requires_grad and torch.is_grad_enabled()
    losses = ops.tvd_fwd(*given)[0] if by_signs else ops.tvd(*given)
    return _reduced(losses, x, labels, ignore_index, reduction)


def jsd_of_logits_(logits, target, beta=0.5, temperature=1.0):
    """jsd of rows of softmax(logits / temperature) from softmax(target / temperature): float32, a number a row, with d jsd /
    d logits in the place of the logits. No autograd: the caller takes the gradient on from there."""
    with torch.no_grad():
        return ops.jsd_of_logits_(logits, target, beta, temperature)


def _losses(x, by_element):
    rows = (x.numel() // x.shape[-1] if x.shape[-1] else 0,) if x.dim() > 1 else (1,)
    return x.new_empty(x.shape if by_element else rows, dtype=torch.float32)


def _of_result(op):
    def setup(ctx, inputs, output):
        ctx.save_for_backward(output)

    return lambda ctx, dy: op(dy, *ctx.saved_tensors), setup


def _of_divergence(op, options):
    def setup(ctx, inputs, output):
        x, target, labels, *ctx.options = inputs
        ctx.save_for_backward(x, target, labels)

    def backward(ctx, dloss):
        return op(dloss, *ctx.saved_tensors, *ctx.options), *(None,) * (2 + options)

    return backward, setup


def _tvd_setup(ctx, inputs, output):
    ctx.x, ctx.by_element = inputs[0].shape, inputs[-1]
    ctx.dtype = inputs[0].dtype
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _tvd_backward(ctx, dloss, _):
    dx = ops.tvd_fwd_bwd(dloss, *ctx.saved_tensors, ctx.x[-1], ctx.dtype, ctx.by_element)
    return dx.view(ctx.x), None, None, None, None


def _tvd_and_signs(x, by_element):
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    return _losses(x, by_element), x.new_empty((rows, (x.shape[-1] + 3) // 4), dtype=torch.uint8)


_package.register(
    {
        "softmax": _like,
        "softmax_bwd": lambda dy, y: _like(y),
        "sparsemax": _like,
        "sparsemax_bwd": lambda dy, y: _like(y),
        "kl_div": lambda x, target, labels, ignore_index, log_target, eps, by_element: _losses(x, by_element),
        "jsd": lambda x, *_: _losses(x, False),
        "tvd": lambda x, target, labels, ignore_index, by_element: _losses(x, by_element),
        "tvd_fwd": lambda x, target, labels, ignore_index, by_element: _tvd_and_signs(x, by_element),
        "tvd_fwd_bwd": lambda dloss, signs, cols, dtype, by_element: signs.new_empty((signs.shape[0], cols), dtype=dtype),
        "jsd_of_logits_": lambda logits, *_: _losses(logits, False),
        **{f"{op}_bwd": lambda dloss, x, *_: _like(x) for op in ("kl_div", "jsd", "tvd")},
    },
    {
        "softmax": _of_result(ops.softmax_bwd),
        "sparsemax": _of_result(ops.sparsemax_bwd),
        "kl_div": _of_divergence(ops.kl_div_bwd, 4),
        "jsd": _of_divergence(ops.jsd_bwd, 2),
        "tvd": _of_divergence(ops.tvd_bwd, 2),
        "tvd_fwd": (_tvd_backward, _tvd_setup),
    },
)

softmax = ops.softmax  # over the last dimension

__all__ = ["jsd", "jsd_of_logits_", "kl_div", "layers", "softmax", "sparsemax", "tvd"]
