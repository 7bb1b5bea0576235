"""The middle of a gated MLP: swiglu(gate, up) = silu(gate) * up, geglu(gate, up) = gelu_tanh(gate) * up."""

from . import _ownership, _package, layers, linked, sharding, whole
from ._package import ops

OPS = ("swiglu", "geglu")


def _backward(op):
    backward_op, in_place_op = getattr(ops, f"{op}_bwd"), getattr(ops, f"{op}_bwd_")

    def backward(ctx, dy):
        saved = ctx.saved_tensors
        if not _ownership.may_overwrite(saved):
            return backward_op(dy, *saved)
        gradients = [t.detach() for t in saved]  # the same memory, no longer part of the graph
        in_place_op(dy, *gradients)
        return tuple(gradients)

    return backward


_package.register(
    {op: lambda gate, up: _package.like(gate) for op in OPS}
    | {f"{op}_bwd": lambda dy, gate, up: (_package.like(gate), _package.like(up)) for op in OPS}
    | {f"{op}_bwd{name}": lambda dy, gate, up: None for op in OPS for name in ("_", "_again_")},
    {op: (_backward(op), _package.save_inputs) for op in OPS},
)
swiglu = ops.swiglu
geglu = ops.geglu
register_sharding = _package.sharding(lambda: sharding.rules(OPS))

__all__ = ["register_sharding", "geglu", "layers", "linked", "swiglu", "whole"]
