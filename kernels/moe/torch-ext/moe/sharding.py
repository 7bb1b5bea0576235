"""Rules for DTensor: tokens may be split for inference; the sorted rows that training keeps belong to all tokens at once.
(transformers' parallel plans hand experts local tensors, and never come here.)"""


def rules():
    from torch.distributed.tensor import Replicate, Shard

    whole, rows = Replicate(), Shard(0)

    def inference(x, index, weights, w_up, b_up, w_down, b_down, *options):
        shared = [None if t is None else whole for t in (w_up, b_up, w_down, b_down)]
        others = [None] * len(options)
        return [([p], [p, p, p, *shared, *others]) for p in (whole, rows)]

    def replicated(outputs):
        def rule(*inputs):
            tensors = [whole if hasattr(t, "ndim") else None for t in inputs]
            return [([whole] * outputs, tensors)]

        return rule

    return {
        "moe_experts": inference,
        "moe_experts_train": replicated(5),
        "moe_experts_bwd": replicated(6),
    }
