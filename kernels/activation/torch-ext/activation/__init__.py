"""Activations alone, act(x), and multiplied, act(gate) * up: ops with fakes and autograd, layers in `layers`."""

import sys

import torch

from . import layers, sharding
from ._ops import add_op_namespace_prefix, ops

UNARY = ("silu", "gelu", "gelu_tanh", "gelu_new", "gelu_fast", "gelu_quick")
AND_MUL = ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")


def _like(x):  # what the ops return, also for strided x
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _half(x):
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _register(name, fake):
    backward_op = getattr(ops, f"{name}_bwd")
    torch.library.register_fake(add_op_namespace_prefix(name))(fake)
    torch.library.register_fake(add_op_namespace_prefix(f"{name}_bwd"))(lambda dy, x: _like(x))
    torch.library.register_autograd(
        add_op_namespace_prefix(name), lambda ctx, dy: backward_op(dy, *ctx.saved_tensors), setup_context=_setup
    )


if not hasattr(ops, "python_registered"):  # the same package may be imported again through another path
    for _name in UNARY:
        _register(_name, _like)
    for _name in AND_MUL:
        _register(_name, _half)
    ops.python_registered = True


def register_sharding():
    """Tells DTensor how to split these ops; done here already where torch.distributed.tensor was imported first."""
    sharding.register(UNARY, AND_MUL)


if "torch.distributed.tensor" in sys.modules:
    register_sharding()

silu, gelu, gelu_tanh, gelu_new, gelu_fast, gelu_quick = (getattr(ops, name) for name in UNARY)
silu_and_mul, gelu_and_mul, gelu_tanh_and_mul = (getattr(ops, name) for name in AND_MUL)

__all__ = ["register_sharding", "layers", *UNARY, *AND_MUL]
