"""Rules for DTensor: element by element, so along any dimension."""


def rules(ops):
    from torch.distributed.tensor import Replicate, Shard

    def rule(outputs, inputs):
        return lambda x, *_: [([p] * outputs, [p] * inputs) for p in (Replicate(), *(Shard(d) for d in range(x.ndim)))]

    return {op: rule(1, 2) for op in ops} | {f"{op}_bwd": rule(2, 3) for op in ops}
