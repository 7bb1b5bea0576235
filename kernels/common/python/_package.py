"""What the Python faces of all packages share. Staged beside _ops.py, from kernels/common/python."""

import sys

import torch
from torch import _C, nn
from torch.autograd import forward_ad

from ._derivatives import autograd_kernel, first_order, without_zeros
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
    """The library's ops, looked up once, and called by `register`'s short way."""

    def __getattr__(self, name):
        op = getattr(_library, name).default
        if any(isinstance(argument.type, torch.TensorType) for argument in op._schema.arguments):
            op = _short_way(name, None)  # also where a package takes an op for its gradients before it registers them
        setattr(self, name, op)
        return op


ops = _Ops()


def _function(op, overload, gradient):
    """The call of an autograd.Function around an op and its gradient, without what a user's Function needs more: default values
    bound by name, functorch's wrappers (_short_way leaves them to the dispatcher), a look for `vjp` at each backward."""
    backward, setup = gradient
    backward = first_order(op, backward)
    defaults = tuple(argument.default_value for argument in overload._schema.arguments)
    run, several = overload._op, len(overload._schema.returns) > 1

    def forward(ctx, *inputs):
        with _C._AutoDispatchBelowAutograd():
            output = run(*inputs)
            setup(ctx, inputs + defaults[len(inputs) :], output)
        if several:
            without_zeros(ctx, output)
        return output

    both = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(f"{op}_with_gradient", (torch.autograd.Function,), both)
    function._backward_cls.apply = backward
    return super(torch.autograd.Function, function).apply


def _short_way(op, gradient):
    """A call of an op, with its gradient or, None, without one. The dispatcher's kernel for Autograd goes through Python also where
    nothing needs a gradient, and costs twice as much; what is traced or transformed takes that one, and what has no gradient where
    one may be asked for; inference mode skips it by itself."""
    overload = getattr(_library, op).default
    run = overload._op  # as the overload's own call, one Python call less
    apply = None if gradient is None else _function(op, overload, gradient)

    def call(*inputs, **named):
        transformed = _C._are_functorch_transforms_active() or forward_ad._current_level >= 0
        if transformed or torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return overload(*inputs, **named)
        if _C.is_grad_enabled() and _C._any_requires_grad(*inputs, *named.values()):
            return overload(*inputs, **named) if named or apply is None else apply(*inputs)
        with _C._AutoDispatchBelowAutograd():
            return run(*inputs, **named)

    return call


def register(fakes, gradients):
    """fakes: op -> its outputs without values, of all ops with tensors. gradients: op -> (backward, setup), as
    torch.library.register_autograd takes them; any other derivative is an error (_derivatives.py).

    Once a library: the same package may be imported again through another path.
    """
    for op in fakes:
        setattr(ops, op, _short_way(op, gradients.get(op)))
    if hasattr(_library, "python_registered"):
        return
    kept = torch.library.Library(add_op_namespace_prefix("").removesuffix("::"), "FRAGMENT")
    for op, fake in fakes.items():
        torch.library.register_fake(add_op_namespace_prefix(op))(fake)
        kernel = autograd_kernel(getattr(_library, op).default, gradients.get(op))
        kept.impl(op, kernel, "Autograd", with_keyset=True)
    _library.python_registered = kept  # or all of this would be undone


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
