"""Activations alone, act(x), and multiplied, act(gate) * up: ops with fakes and autograd, layers in `layers`."""

from . import _package, layers, sharding
from ._package import ops

ACTS = [name for name in ops.op_names().split() if not name.endswith("_bwd")]
AND_MUL = [name for name in ACTS if name.endswith("_and_mul")]
UNARY = [name for name in ACTS if name not in AND_MUL]


def _half(x):
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _backward(op):
    backward_op = getattr(ops, f"{op}_bwd")
    return lambda ctx, dy: backward_op(dy, *ctx.saved_tensors)


_package.register(
    dict.fromkeys(UNARY, _package.like)
    | dict.fromkeys(AND_MUL, _half)
    | {f"{op}_bwd": lambda dy, x: _package.like(x) for op in ACTS},
    {op: (_backward(op), _package.save_inputs) for op in ACTS},
)
register_sharding = _package.sharding(lambda: sharding.rules(UNARY, AND_MUL))

globals().update({op: getattr(ops, op) for op in ACTS})

__all__ = ["register_sharding", "layers", *ACTS]
