"""Rules for DTensor: along the heads, and along the batch where every row has the same table."""

from ._ops import ops


def register():
    """Once torch.distributed.tensor is imported; again is nothing."""
    if hasattr(ops, "sharding_registered"):
        return
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def rule(q, k, cos, sin, *_):
        placed = [Replicate(), Shard(1)] + [Shard(0)] * (cos.shape[0] == 1)
        return [([p, p], [p, p, Replicate(), Replicate(), None, None]) for p in placed]

    for op in (ops.rotary, ops.rotary_bwd):
        register_sharding(op.default)(rule)
    ops.sharding_registered = True
