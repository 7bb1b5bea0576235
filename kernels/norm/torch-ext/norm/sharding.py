"""Rules for DTensor. Statistics are one number a row, rows in memory order: a tensor that is sharded along its first
dimension has them sharded, too; along another, DTensor gathers it first. The last dimension is never sharded."""

from ._ops import ops


def register():
    """Once torch.distributed.tensor is imported; again is nothing."""
    if hasattr(ops, "sharding_registered"):
        return
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    whole, rows, summed = Replicate(), Shard(0), Partial()

    def rules(outputs, inputs, others, any_dimension=False):
        """outputs and inputs as when sharded by rows; others: arguments that are no tensors."""

        def rule(x, *_):
            found = [([whole] * len(outputs), [whole] * len(inputs) + [None] * others)]
            for d in range(x.ndim - 1 if any_dimension else min(1, x.ndim - 1)):
                at = lambda placements: [Shard(d) if p is rows else p for p in placements]
                found.append((at(outputs), at(inputs) + [None] * others))
            return found

        return rule

    register_sharding(ops.rms_norm.default)(rules([rows], [rows, whole], 3, any_dimension=True))
    register_sharding(ops.rms_norm_fwd.default)(rules([rows, rows], [rows, whole], 3))
    register_sharding(ops.rms_norm_bwd.default)(rules([rows, summed], [rows, rows, whole, rows], 2))
    register_sharding(ops.add_rms_norm.default)(rules([rows, rows], [rows, rows, whole], 3, any_dimension=True))
    register_sharding(ops.add_rms_norm_fwd.default)(rules([rows, rows, rows], [rows, rows, whole], 3))
    register_sharding(ops.add_rms_norm_bwd.default)(rules([rows, summed], [rows, rows, rows, whole, rows], 2))
    ops.sharding_registered = True
