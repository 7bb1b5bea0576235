"""Rules for DTensor: element by element, so along any dimension."""

from ._ops import ops


def register():
    """Once torch.distributed.tensor is imported; again is nothing."""
    if hasattr(ops, "sharding_registered"):
        return
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def rule(outputs, inputs):
        return lambda x, *_: [([p] * outputs, [p] * inputs) for p in (Replicate(), *(Shard(d) for d in range(x.ndim)))]

    for op, backward in ((ops.swiglu, ops.swiglu_bwd), (ops.geglu, ops.geglu_bwd)):
        register_sharding(op.default)(rule(1, 2))
        register_sharding(backward.default)(rule(2, 3))
    ops.sharding_registered = True
