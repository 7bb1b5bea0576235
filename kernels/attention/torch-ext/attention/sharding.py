"""Rules for DTensor: along the heads, where every part has whole groups, and along the batch."""


def rules():
    from torch.distributed.tensor import Partial, Replicate, Shard

    whole = Replicate()

    def placed(args, choose):
        """For each argument: its placement, None where it is no tensor."""
        return [None if not hasattr(a, "ndim") else choose(i, a) for i, a in enumerate(args)]

    def rule(outputs, heads, first=0):
        """outputs(how): their placements by "whole", "heads", "batch". heads: the dimension of q that has them; q is argument
        `first`. Of the others those of as many dimensions as q are split as q is, lse one dimension before."""

        def of(*args):
            q, k = args[first], args[first + 1]

            def by_heads(i, a):
                if a.ndim == q.ndim:
                    return Shard(heads)
                if i < first + 6 and a.ndim == q.ndim - 1:  # lse, dlse: [batch, heads, rows]
                    return Shard(heads - 1)
                return Shard(a.ndim - 1) if i >= len(args) - 10 and a.dtype.is_floating_point else whole  # sinks, slopes

            def by_batch(i, a):
                return Shard(0) if a.ndim == q.ndim or (i < first + 6 and a.ndim == q.ndim - 1) else whole

            found = [(outputs("whole"), placed(args, lambda i, a: whole))]
            if all(n % q.mesh.size() == 0 for n in (q.shape[heads], k.shape[heads])):
                found.append((outputs("heads"), placed(args, by_heads)))
            if q.ndim == 4:
                found.append((outputs("batch"), placed(args, by_batch)))
            return found

        return of

    def forward(heads, with_lse):
        at = {"whole": (whole, whole), "heads": (Shard(heads), Shard(heads - 1)), "batch": (Shard(0), Shard(0))}
        return rule(lambda how: list(at[how][: 1 + with_lse]), heads)

    def backward(heads):
        sinks = {"whole": whole, "heads": Shard(0), "batch": Partial()}
        at = {"whole": whole, "heads": Shard(heads), "batch": Shard(0)}
        return rule(lambda how: [at[how]] * 3 + [sinks[how]], heads, first=1)

    return {
        "attention": forward(2, False),
        "attention_fwd": forward(2, True),
        "attention_bwd": backward(2),
        "attention_varlen": forward(1, False),
        "attention_varlen_fwd": forward(1, True),
        "attention_varlen_bwd": backward(1),
    }
