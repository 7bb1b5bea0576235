import torch

from . import layers
from ._ops import add_op_namespace_prefix, ops


def _linear_fake(x, weight, bias):
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _linear_bwd_fake(dy, x, weight, with_bias):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty((weight.shape[0],) if with_bias else (0,))


def _setup(ctx, inputs, output):
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.with_bias = bias is not None


def _backward(ctx, dy):
    dx, dweight, dbias = ops.linear_bwd(dy, *ctx.saved_tensors, ctx.with_bias)
    return dx, dweight, dbias if ctx.with_bias else None


# The same package may be imported again through another path; torch keeps one registration per id.
if not hasattr(ops, "python_registered"):
    torch.library.register_fake(add_op_namespace_prefix("linear"))(_linear_fake)
    torch.library.register_fake(add_op_namespace_prefix("linear_bwd"))(_linear_bwd_fake)
    torch.library.register_autograd(add_op_namespace_prefix("linear"), _backward, setup_context=_setup)
    ops.python_registered = True

__all__ = ["layers"]
