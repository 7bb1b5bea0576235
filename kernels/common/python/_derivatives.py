"""Which derivatives there are of ops: the first by backward, where an op has a gradient. Every other one is an error, however
it is asked for: a derivative of a derivative (create_graph), forward mode, torch.func's transforms."""

import functools

import torch
from torch.autograd import forward_ad

_FIRST = "the first derivative, by backward (once_differentiable)"
_NONE = "no derivative, of which this op has none"


def _refused(name, request, expected=_FIRST):
    return NotImplementedError(
        f"{name}: expected {expected}; got a request for {request}; take that with torch's own function, or with the stock "
        "layers: hotswap.unkernelize(model)"
    )


class _WithoutDerivative(torch.autograd.Function):
    """error, count, that many tensors, what they are a function of -> these tensors, whose derivative is that error."""

    @staticmethod
    def forward(ctx, error, count, *tensors):
        ctx.error = error
        return tuple(None if t is None else t.detach() for t in tensors[:count])

    @staticmethod
    def backward(ctx, *_):
        raise ctx.error

    @staticmethod
    def jvp(ctx, *_):
        raise ctx.error


def first_order(name, backward):
    """The backward(ctx, *gradients) of a Function, of whose result there is no derivative: asking for one is an error. All that
    the result is a function of must be among what ctx saved. Where forward made the gradients and ctx saved nothing else, it
    sets ctx.made_in_forward, and the error comes with create_graph=True already."""

    @functools.wraps(backward)
    def once(ctx, *douts):
        if douts[0] is None and not any(d is not None for d in douts):
            return (None,) * len(ctx.needs_input_grad)
        if not torch._C.is_grad_enabled():
            return backward(ctx, *douts)
        error = _refused(name, "a derivative of that (create_graph=True, a Hessian)")
        if getattr(ctx, "made_in_forward", False):
            raise error
        with torch.no_grad():
            found = backward(ctx, *douts)
        found = found if isinstance(found, tuple) else (found,)
        return _WithoutDerivative.apply(error, len(found), *found, *ctx.saved_tensors, *douts)

    return once


def without_zeros(ctx, output):
    """After setup: where only one of an op's results has a gradient, backward gets None for the others instead of zeros, each of
    which a kernel would make."""
    others = ctx.non_differentiable
    if others is not None and len(others) == len(output) - 1:
        ctx.set_materialize_grads(False)


def _derived(args):
    """Whether a derivative by any of args may be asked for."""
    by_backward, forward = torch.is_grad_enabled(), forward_ad._current_level >= 0
    if not by_backward and not forward:
        return False
    tensors = [t for t in args if isinstance(t, torch.Tensor)]
    if by_backward and any(t.requires_grad for t in tensors):
        return True
    return forward and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def autograd_kernel(op, gradient=None):
    """What the dispatcher runs of an OpOverload for the key Autograd. gradient: (backward, setup), or None where there is none:
    then backward through the op's results is an error."""
    name, schema = op._schema.name.split("::")[-1], op._schema
    defaults = [a.default_value for a in schema.arguments]
    written = [] if schema.returns else [i for i, a in enumerate(schema.arguments) if a.is_write]
    backward, setup = gradient or (None, None)
    if backward is not None:
        backward = first_order(name, backward)

    def below(keyset, args, kwargs):
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):  # keyset and kwargs are the last of these, so that ctx.needs_input_grad begins with the op's
            *args, keyset, kwargs = args
            output = below(keyset, args, kwargs)
            if setup is not None:
                setup(ctx, (*args, *defaults[len(args) :]), output)
                without_zeros(ctx, output)
            return output

        @staticmethod
        def backward(ctx, *douts):
            if backward is None:
                raise _refused(name, "a derivative", _NONE)
            found = backward(ctx, *douts)
            return *(found if isinstance(found, tuple) else (found,)), None, None

        @staticmethod
        def jvp(ctx, *tangents):
            raise _refused(name, "a derivative in forward mode (jvp)")

    Op.__name__ = Op.__qualname__ = f"{name}_gradient"

    def kernel(keyset, *args, **kwargs):
        if not _derived(args):
            return below(keyset, args, kwargs)
        if torch._C._are_functorch_transforms_active():
            raise _refused(name, "a derivative by torch.func")
        if _derived([args[i] for i in written if i < len(args)]):  # nothing comes back, of which the derivative could be an error
            raise _refused(name, "a derivative", _NONE)
        return Op.apply(*args, keyset, kwargs)

    return kernel
