"""The ops' gradients, and their outputs without numbers, as torch.compile asks for them."""

import math

import torch

from . import _ownership, _package
from ._package import ops
from ._package import like


def _loss_and_lse(logits, target, ignore_index, label_smoothing, softcap, z_loss, reduction, *_):
    rows = logits.shape[0]
    loss = logits.new_empty((rows,) if reduction == "none" else (), dtype=torch.float32)
    return loss, logits.new_empty((rows, 2), dtype=torch.float32)  # the maximum, and the logarithm of the sum beside it


# ---- cross-entropy of logits


def _setup(ctx, inputs, output):
    logits, target, *ctx.options, class_weight, ctx.token_scaling = inputs
    ctx.save_for_backward(logits, target, output[1], class_weight)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, dloss, _):
    *tensors, class_weight = ctx.saved_tensors
    dlogits = ops.cross_entropy_bwd(dloss, *tensors, *ctx.options, class_weight, ctx.token_scaling)
    return dlogits, *(None,) * 8


# ---- both at once: backward finds the gradients made


def _both_fake(logits, target, *options):
    return (*_loss_and_lse(logits, target, *options), like(logits))


def _both_setup(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.made_in_forward = True
    ctx.save_for_backward(output[2])


def _both_backward(ctx, dloss, *_):
    return *of_made(ctx, dloss), *(None,) * 8


# ---- linear cross-entropy


def _linear_fake(hidden, weight, bias, target, ignore_index, label_smoothing, softcap, z_loss, reduction,
                 float32_dweight=False, chunk_bytes=0, class_weight=None, token_scaling=False, predict=False):  # fmt: skip
    none = hidden.new_empty((0,))
    if reduction == "none":
        gradients = (none, hidden.new_empty((0,)), hidden.new_empty((0,)))
    else:
        gradients = (like(hidden), like(weight), none if bias is None else like(bias))
    predicted = target.new_empty((hidden.shape[0] if predict else 0,))
    return (*_loss_and_lse(hidden, target, 0, 0, 0, 0, reduction), *gradients, predicted)


def _linear_bwd_fake(dloss, hidden, weight, bias, target, *_):
    return like(hidden), like(weight), hidden.new_empty((0,)) if bias is None else like(bias)


def _linear_setup(ctx, inputs, output):
    # what the backward op takes: all but whether to predict
    hidden, weight, bias, target, *ctx.options, class_weight, ctx.token_scaling, _ = inputs
    ctx.has_bias, ctx.made_in_forward = bias is not None, ctx.options[4] != "none"
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # else backward is given zeros of the gradients' sizes for them
    if ctx.made_in_forward:
        ctx.save_for_backward(*output[2:5])
    else:
        ctx.save_for_backward(hidden, weight, bias, target, output[1], class_weight)


def scaled(gradient, dloss, in_place=False):
    """gradient * dloss, rounded once: dloss itself in sixteen bits would be wrong by the same share for every element, or
    infinite where a loss scaler's is meant. A 0 stays 0 whatever dloss is, as in torch: rows without a label have no
    gradient, and a sum of none of them divided by their number, 0, has the infinite dloss 1 / 0."""
    traced = torch.compiler.is_compiling() or type(dloss) is not torch.Tensor
    if dloss.device.type == "cpu" and not traced:  # reading it would make a GPU wait, and cannot be traced
        factor = dloss.item()
        if not math.isfinite(factor):
            return torch.where(gradient == 0, gradient, gradient * factor)
        if not in_place:  # a copy for 1, too: a second backward reads what is saved, whatever becomes of this one
            return gradient * factor
        return gradient if factor == 1 else gradient.mul_(factor)
    if not traced and dloss.is_cuda:
        gradient = gradient if in_place else gradient.clone()
        ops.scale_gradient_(gradient, dloss)
        return gradient
    # Of one dimension, dloss takes part in type promotion, in a GPU's registers.
    product = torch.mul(gradient, dloss.reshape(1), out=torch.empty_like(gradient))
    return torch.where(gradient == 0, gradient, product)


def of_made(ctx, dloss):
    """What forward made for dloss = 1, all of what ctx saved, times dloss: where it lies, if nothing else can see it."""
    if dloss is None:
        return (None,) * len(ctx.saved_tensors)
    saved = ctx.saved_tensors
    in_place = _ownership.may_overwrite(saved)
    return tuple(scaled(g.detach() if in_place else g, dloss, in_place) for g in saved)


def _linear_backward(ctx, dloss, *_):
    if ctx.made_in_forward:
        gradients = of_made(ctx, dloss)
    else:
        *tensors, class_weight = ctx.saved_tensors
        gradients = ops.linear_cross_entropy_bwd(dloss, *tensors, *ctx.options, class_weight, ctx.token_scaling)
    dhidden, dweight, dbias = gradients
    return (dhidden, dweight, dbias if ctx.has_bias else None, *(None,) * 11)


_package.register(
    {
        "cross_entropy": lambda *args: _loss_and_lse(*args)[0],
        "cross_entropy_fwd": _loss_and_lse,
        "cross_entropy_fwd_": _loss_and_lse,
        "cross_entropy_fwd_bwd": _both_fake,
        "cross_entropy_bwd": lambda dloss, logits, *_: like(logits),
        "linear_cross_entropy": lambda hidden, weight, bias, *rest: _loss_and_lse(hidden, *rest)[0],
        "linear_cross_entropy_fwd": _linear_fake,
        "linear_cross_entropy_bwd": _linear_bwd_fake,
    },
    {
        "cross_entropy_fwd": (_backward, _setup),
        "cross_entropy_fwd_bwd": (_both_backward, _both_setup),
        "linear_cross_entropy_fwd": (_linear_backward, _linear_setup),
    },
)
