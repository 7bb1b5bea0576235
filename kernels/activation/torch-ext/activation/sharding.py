"""Rules for DTensor: element by element, so any dimension; of [gate | up] any but the last."""


def rules(unary, and_mul):
    from torch.distributed.tensor import Replicate, Shard

    def rule(inputs, dimensions):
        placed = lambda x: [Replicate(), *(Shard(d) for d in range(dimensions(x.ndim)))]
        return lambda x, *_: [([p], [p] * inputs) for p in placed(x)]

    found = {}
    for names, dimensions in ((unary, lambda n: n), (and_mul, lambda n: n - 1)):
        for name in names:
            found |= {name: rule(1, dimensions), f"{name}_bwd": rule(2, dimensions)}
    return found
