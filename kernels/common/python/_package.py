"""What the Python faces of all packages share. Staged beside _ops.py, from kernels/common/python."""

import sys

import torch
from torch import nn

from ._ops import add_op_namespace_prefix, ops


class Layer(nn.Module):
    """A layer's class has forward and annotations alone; these two flags are all that `kernels` lets it have more."""

    can_torch_compile = True
    has_backward = True


def like(x, dtype=None):
    """What the ops return, also for strided x."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def save_inputs(ctx, inputs, output):
    """The setup of a gradient that wants what forward was given, where all of that is tensors."""
    ctx.save_for_backward(*inputs)


def register(fakes, gradients):
    """fakes: op -> its outputs without their numbers. gradients: op -> (backward, setup), as autograd wants them.

    Once a library: the same package may be imported again through another path.
    """
    if hasattr(ops, "python_registered"):
        return
    for op, fake in fakes.items():
        torch.library.register_fake(add_op_namespace_prefix(op))(fake)
    for op, (backward, setup) in gradients.items():
        torch.library.register_autograd(add_op_namespace_prefix(op), backward, setup_context=setup)
    ops.python_registered = True


def sharding(rules):
    """The package's register_sharding(), of rules() -> {op: rule} as torch's register_sharding wants it."""

    def register_sharding():
        """Tells DTensor how to split these ops; done here already where torch.distributed.tensor was imported first."""
        if hasattr(ops, "sharding_registered"):
            return
        from torch.distributed.tensor.experimental import register_sharding as tell

        for op, rule in rules().items():
            tell(getattr(ops, op).default)(rule)
        ops.sharding_registered = True

    if "torch.distributed.tensor" in sys.modules:
        register_sharding()
    return register_sharding
