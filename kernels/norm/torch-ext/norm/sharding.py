"""Rules for DTensor. Statistics are one number a row, rows in memory order: a tensor that is sharded along its first
dimension has them sharded, too; along another, DTensor gathers it first. The last dimension is never sharded."""


def rules():
    from torch.distributed.tensor import Partial, Replicate, Shard

    whole, rows, summed = Replicate(), Shard(0), Partial()

    def by_rows(outputs, inputs, others, any_dimension=False):
        """outputs and inputs as when sharded by rows; others: arguments that are no tensors."""

        def rule(x, *_):
            found = [([whole] * len(outputs), [whole] * len(inputs) + [None] * others)]
            for d in range(x.ndim - 1 if any_dimension else min(1, x.ndim - 1)):
                at = lambda placements: [Shard(d) if p is rows else p for p in placements]
                found.append((at(outputs), at(inputs) + [None] * others))
            return found

        return rule

    return {
        "rms_norm": by_rows([rows], [rows, whole], 3, any_dimension=True),
        "rms_norm_fwd": by_rows([rows, rows], [rows, whole], 3),
        "rms_norm_bwd": by_rows([rows, summed], [rows, rows, whole, rows], 2),
        "add_rms_norm": by_rows([rows, rows], [rows, rows, whole], 3, any_dimension=True),
        "add_rms_norm_fwd": by_rows([rows, rows, rows], [rows, rows, whole], 3),
        "add_rms_norm_bwd": by_rows([rows, summed], [rows, rows, rows, whole, rows], 2),
    }
