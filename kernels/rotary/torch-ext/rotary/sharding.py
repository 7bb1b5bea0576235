"""Rules for DTensor: along the heads, and along the batch where every row has the same table."""


def rules():
    from torch.distributed.tensor import Replicate, Shard

    def rule(q, k, cos, sin, *_):
        placed = [Replicate(), Shard(1)] + [Shard(0)] * (cos.shape[0] == 1)
        return [([p, p], [p, p, Replicate(), Replicate(), None, None]) for p in placed]

    return {"rotary": rule, "rotary_bwd": rule}
