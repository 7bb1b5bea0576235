"""The middle of a gated MLP: swiglu(gate, up) = silu(gate) * up, geglu(gate, up) = gelu_tanh(gate) * up."""

import sys

import torch

from . import layers, ownership, sharding
from ._ops import add_op_namespace_prefix, ops

swiglu = ops.swiglu
geglu = ops.geglu


def _like(x):  # what the ops return, also for strided x
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _register(name):
    backward_op, in_place_op = getattr(ops, f"{name}_bwd"), getattr(ops, f"{name}_bwd_")

    def backward(ctx, dy):
        saved = ctx.saved_tensors
        if not ownership.may_overwrite(saved):
            return backward_op(dy, *saved)
        gradients = [t.detach() for t in saved]  # the same memory, no longer part of the graph
        in_place_op(dy, *gradients)
        return tuple(gradients)

    torch.library.register_fake(add_op_namespace_prefix(name))(lambda gate, up: _like(gate))
    torch.library.register_fake(add_op_namespace_prefix(f"{name}_bwd"))(lambda dy, gate, up: (_like(gate), _like(up)))
    torch.library.register_fake(add_op_namespace_prefix(f"{name}_bwd_"))(lambda dy, gate, up: None)
    torch.library.register_autograd(add_op_namespace_prefix(name), backward, setup_context=_setup)


if not hasattr(ops, "python_registered"):  # the same package may be imported again through another path
    _register("swiglu")
    _register("geglu")
    ops.python_registered = True


def register_sharding():
    """Tells DTensor how to split these ops; done here already where torch.distributed.tensor was imported first."""
    sharding.register()


if "torch.distributed.tensor" in sys.modules:
    register_sharding()

__all__ = ["register_sharding", "geglu", "layers", "swiglu"]
