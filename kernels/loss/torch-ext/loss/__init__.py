"""Cross-entropy of logits, and of hidden @ weight^T without ever holding all logits."""

import torch

from . import _ownership, _package, layers
from ._ops import ops
from ._package import like as _like


def cross_entropy(
    logits, target, ignore_index=-100, label_smoothing=0.0, softcap=0.0, z_loss=0.0, reduction="mean"
):
    """logits [n, vocab], target int64 [n]; the loss is float32, as is everything summed on the way."""
    return ops.cross_entropy_fwd(logits, target, ignore_index, label_smoothing, softcap, z_loss, reduction)[0]


def cross_entropy_(
    logits, target, ignore_index=-100, label_smoothing=0.0, softcap=0.0, z_loss=0.0, reduction="mean"
):
    """The loss, with d loss / d logits in the place of the logits (rows must be contiguous): no second tensor of their
    size. No autograd: the caller takes the gradient on from there."""
    with torch.no_grad():
        return ops.cross_entropy_fwd_(logits, target, ignore_index, label_smoothing, softcap, z_loss, reduction)[0]


def linear_cross_entropy(
    hidden,
    weight,
    target,
    bias=None,
    ignore_index=-100,
    label_smoothing=0.0,
    softcap=0.0,
    z_loss=0.0,
    reduction="mean",
    float32_dweight=False,
    chunk_bytes=0,
):
    """hidden [n, dim], weight [vocab, dim], target int64 [n]; logits exist for a few rows at a time only.

    float32_dweight: the weight's gradient is summed over chunks of rows in float32, as the CPU always does; a GPU takes
    4 * vocab * dim bytes and a few percent of the time for it.
    chunk_bytes: of logits at once, beside which little is needed but the gradients; 0: 256 MiB on a GPU, and 512 rows of
    float32 or 1024 of 16 bits on the CPU. Less is slower.
    """
    options = (ignore_index, label_smoothing, softcap, z_loss, reduction)
    if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in (hidden, weight, bias)):
        return ops.linear_cross_entropy(hidden, weight, bias, target, *options, chunk_bytes)
    frozen = not weight.requires_grad and (bias is None or not bias.requires_grad)
    if frozen and reduction != "none":
        rows = max(1, (chunk_bytes or FROZEN_BYTES) // (weight.shape[0] * weight.element_size()))
        return _FrozenHead.apply(hidden, weight, bias, target, rows, *options)
    return ops.linear_cross_entropy_fwd(hidden, weight, bias, target, *options, float32_dweight, chunk_bytes)[0]


FROZEN_BYTES = 1 << 28  # of logits at once


class _FrozenHead(torch.autograd.Function):
    """The loss where the head does not learn (adapters): no gradient of its size is made."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, rows, ignore_index, label_smoothing, softcap, z_loss, reduction):
        dhidden = torch.empty_like(hidden, memory_format=torch.contiguous_format)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for begin in range(0, hidden.shape[0], rows):
            some = slice(begin, begin + rows)
            logits = torch.nn.functional.linear(hidden[some], weight, bias)
            options = (ignore_index, label_smoothing, softcap, z_loss, "sum")
            loss += ops.cross_entropy_fwd_(logits, target[some], *options)[0]
            dhidden[some] = logits @ weight  # logits hold their gradient now
        scale = torch.ones_like(loss) if reduction == "sum" else 1 / (target != ignore_index).sum().float()
        ctx.save_for_backward(dhidden, scale)
        return loss * scale

    @staticmethod
    def backward(ctx, dloss):
        dhidden, scale = ctx.saved_tensors
        return _scaled(dhidden, dloss * scale), *(None,) * 9


def _loss(like, rows, reduction):
    return like.new_empty((rows,) if reduction == "none" else (), dtype=torch.float32)


def _lse(like, rows):
    return like.new_empty((rows,), dtype=torch.float32)


def _setup(ctx, inputs, output):
    logits, target, *ctx.options = inputs
    ctx.save_for_backward(logits, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, dloss, _):
    return (ops.cross_entropy_bwd(dloss, *ctx.saved_tensors, *ctx.options), *(None,) * 6)


def _linear_fake(hidden, weight, bias, target, ignore_index, label_smoothing, softcap, z_loss, reduction, wide=False,
                 chunk_bytes=0):
    n = hidden.shape[0]
    if reduction == "none":
        gradients = (hidden.new_empty((0,)), hidden.new_empty((0,)), hidden.new_empty((0,)))
    else:
        gradients = (_like(hidden), _like(weight), hidden.new_empty((0,)) if bias is None else _like(bias))
    return (_loss(hidden, n, reduction), _lse(hidden, n), *gradients)


def _linear_bwd_fake(dloss, hidden, weight, bias, target, *_):
    return _like(hidden), _like(weight), hidden.new_empty((0,)) if bias is None else _like(bias)


def _by_row(ctx):
    return ctx.options[4] == "none"  # the reduction


def _linear_setup(ctx, inputs, output):
    hidden, weight, bias, target, *ctx.options = inputs
    ctx.has_bias = bias is not None
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # else backward is given zeros of the gradients' sizes for them
    if _by_row(ctx):
        ctx.save_for_backward(hidden, weight, bias, target, output[1])
    else:
        ctx.save_for_backward(*output[2:])


def _scaled(gradient, dloss, in_place=False):
    """gradient * dloss, rounded once: dloss itself in sixteen bits would be wrong by the same share for every number,
    or infinite where a loss scaler's is meant."""
    traced = torch.compiler.is_compiling() or type(dloss) is not torch.Tensor
    if dloss.device.type == "cpu" and not traced:  # reading it would make a GPU wait, and cannot be traced
        factor = dloss.item()
        return gradient if factor == 1 else gradient.mul_(factor) if in_place else gradient * factor
    if in_place and not traced and dloss.is_cuda:
        ops.scale_gradient_(gradient, dloss)
        return gradient
    # Of one dimension, dloss takes part in type promotion, in a GPU's registers.
    return torch.mul(gradient, dloss.reshape(1), out=torch.empty_like(gradient))


def _linear_backward(ctx, dloss, *_):
    if _by_row(ctx):
        hidden, weight, bias, target, lse = ctx.saved_tensors
        gradients = ops.linear_cross_entropy_bwd(dloss, hidden, weight, bias, target, lse, *ctx.options)
    else:
        saved = ctx.saved_tensors  # made for dloss = 1
        in_place = _ownership.may_overwrite(saved)
        gradients = [_scaled(g.detach() if in_place else g, dloss, in_place) for g in saved]
    dhidden, dweight, dbias = gradients
    return (dhidden, dweight, dbias if ctx.has_bias else None, *(None,) * 8)


def _loss_and_lse(logits, target, ignore_index, label_smoothing, softcap, z_loss, reduction):
    rows = logits.shape[0]
    return _loss(logits, rows, reduction), _lse(logits, rows)


_package.register(
    {
        "cross_entropy": lambda *args: _loss_and_lse(*args)[0],
        "cross_entropy_fwd": _loss_and_lse,
        "cross_entropy_fwd_": _loss_and_lse,
        "cross_entropy_bwd": lambda dloss, logits, *_: _like(logits),
        "linear_cross_entropy": lambda hidden, weight, bias, *rest: _loss_and_lse(hidden, *rest[:6])[0],
        "linear_cross_entropy_fwd": _linear_fake,
        "linear_cross_entropy_bwd": _linear_bwd_fake,
    },
    {"cross_entropy_fwd": (_backward, _setup), "linear_cross_entropy_fwd": (_linear_backward, _linear_setup)},
)

__all__ = ["cross_entropy", "cross_entropy_", "layers", "linear_cross_entropy"]
