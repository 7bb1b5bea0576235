"""Rules for DTensor: element by element, so any dimension; of [gate | up] any but the last."""

from ._ops import ops


def register(unary, and_mul):
    """Once torch.distributed.tensor is imported; again is nothing."""
    if hasattr(ops, "sharding_registered"):
        return
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def rule(inputs, dimensions):
        placed = lambda x: [Replicate(), *(Shard(d) for d in range(dimensions(x.ndim)))]
        return lambda x, *_: [([p], [p] * inputs) for p in placed(x)]

    for names, dimensions in ((unary, lambda n: n), (and_mul, lambda n: n - 1)):
        for name in names:
            register_sharding(getattr(ops, name).default)(rule(1, dimensions))
            register_sharding(getattr(ops, f"{name}_bwd").default)(rule(2, dimensions))
    ops.sharding_registered = True
