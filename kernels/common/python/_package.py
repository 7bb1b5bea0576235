"""What the Python faces of all packages share. Staged beside _ops.py, from kernels/common/python."""

import sys

import torch
from torch import _C, nn

from ._ops import add_op_namespace_prefix
from ._ops import ops as _library


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


class _Ops:
    """The library's ops, looked up once. One with a gradient is called by `register`'s short way."""

    def __getattr__(self, name):
        op = getattr(_library, name).default
        setattr(self, name, op)
        return op


ops = _Ops()


def _short_way(op, backward, setup):
    """A call of an op with its gradient. torch.library's own way goes through Python also where nothing needs a gradient, and costs
    twice as much; what is traced or transformed takes that one, and inference mode skips it by itself."""
    overload = getattr(_library, op).default
    defaults = [argument.default_value for argument in overload._schema.arguments]

    def forward(ctx, *inputs):
        with _C._AutoDispatchBelowAutograd():
            output = overload(*inputs)
            setup(ctx, inputs + tuple(defaults[len(inputs) :]), output)
        return output

    both = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    apply = type(f"{op}_with_gradient", (torch.autograd.Function,), both).apply

    def call(*inputs, **named):
        traced = torch.compiler.is_compiling() or _C._are_functorch_transforms_active()
        if traced or named or torch.is_inference_mode_enabled():
            return overload(*inputs, **named)
        if _C.is_grad_enabled() and _C._any_requires_grad(*inputs):
            return apply(*inputs)
        with _C._AutoDispatchBelowAutograd():
            return overload(*inputs)

    return call


def register(fakes, gradients):
    """fakes: op -> its outputs without their numbers. gradients: op -> (backward, setup), as autograd wants them.

    Once a library: the same package may be imported again through another path.
    """
    for op, of in gradients.items():
        setattr(ops, op, _short_way(op, *of))
    if hasattr(_library, "python_registered"):
        return
    for op, fake in fakes.items():
        torch.library.register_fake(add_op_namespace_prefix(op))(fake)
    for op, (backward, setup) in gradients.items():
        torch.library.register_autograd(add_op_namespace_prefix(op), backward, setup_context=setup)
    _library.python_registered = True


def sharding(rules):
    """The package's register_sharding(), of rules() -> {op: rule} as torch's register_sharding wants it."""

    def register_sharding():
        """Tells DTensor how to split these ops; done here already where torch.distributed.tensor was imported first."""
        if hasattr(_library, "sharding_registered"):
            return
        from torch.distributed.tensor.experimental import register_sharding as tell

        for op, rule in rules().items():
            tell(getattr(_library, op).default)(rule)
        _library.sharding_registered = True

    if "torch.distributed.tensor" in sys.modules:
        register_sharding()
    return register_sharding
