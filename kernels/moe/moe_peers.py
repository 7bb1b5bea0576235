"""Experts of a mixture on a GPU beside transformers' ways of running them; bench/peers.py runs it."""

import torch
from gpu_common import memory_of

SWIGLU = ("swiglu", 1.0, float("inf"), False, False, False)
# hidden, inner, experts, experts a token
SHAPES = {
    "Qwen3-30B-A3B": (2048, 768, 128, 8),
    "OLMoE": (2048, 1024, 64, 8),
    "Mixtral": (4096, 14336, 8, 2),
}


def experts_of(hidden, inner, experts, top_k):
    """transformers' experts class with random weights, and its functions for it."""
    from transformers import Qwen3MoeConfig
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    config = Qwen3MoeConfig(hidden_size=hidden, moe_intermediate_size=inner, num_experts=experts, num_experts_per_tok=top_k)
    with torch.device("cuda"):
        module = Qwen3MoeExperts(config).bfloat16()
    for weight, size in ((module.gate_up_proj, hidden), (module.down_proj, inner)):
        weight.data.normal_(std=size**-0.5)
    eager = type(module).forward.__wrapped__
    ways = {"transformers eager": lambda *a: eager(module, *a)}
    for name in ("grouped_mm", "batched_mm"):
        ways[f"transformers {name}"] = lambda *a, f=ALL_EXPERTS_FUNCTIONS[name]: f(module, *a)
    return module, ways


def routed(tokens, hidden, experts, top_k):
    x = torch.randn(tokens, hidden, device="cuda").bfloat16()
    chosen = torch.randn(tokens, experts, device="cuda").softmax(-1).topk(top_k)
    return x, chosen.indices, chosen.values.bfloat16()


def grouped_mm_alone(module, x, index, top_k):
    """Both products of torch's own over rows that lie sorted already, without all else."""
    experts = module.gate_up_proj.shape[0]
    rows = x.repeat_interleave(top_k, 0)
    inner = torch.randn(rows.shape[0], module.down_proj.shape[2], device="cuda").bfloat16()
    offsets = torch.bincount(index.flatten(), minlength=experts).cumsum(0).int()
    up, down = module.gate_up_proj.detach().transpose(1, 2), module.down_proj.detach().transpose(1, 2)

    def call(_):
        torch._grouped_mm(rows, up, offs=offsets)
        torch._grouped_mm(inner, down, offs=offsets)

    return call


def token(module, x, index, weights, t):
    """One token's result in float64."""
    total = 0
    for e, s in zip(index[t].tolist(), weights[t].double()):
        gate, up = (module.gate_up_proj[e].double() @ x[t].double()).chunk(2)
        total = total + s * (module.down_proj[e].double() @ (torch.nn.functional.silu(gate) * up))
    return total


def run(c):
    for name, (hidden, inner, experts, top_k) in SHAPES.items():
        if not any(c.wants(op) for op in ("moe_experts", "moe_experts_fwd_bwd", "moe_experts_decode")):
            return
        module, ways = experts_of(hidden, inner, experts, top_k)
        for tokens in (16384, 1, 4, 16, 64) if name == "Qwen3-30B-A3B" else (16384,):
            one(c, name, module, ways, tokens, (hidden, inner, experts, top_k))
        del module, ways
        torch.cuda.empty_cache()


def one(c, name, module, ways, tokens, sizes):
    hidden, inner, experts, top_k = sizes
    ops, (x, index, weights) = c.ops["moe"], routed(tokens, hidden, experts, top_k)
    up, down = module.gate_up_proj, module.down_proj
    inputs = (x, index, weights, up.detach(), None, down.detach(), None)
    decode, shape = tokens <= 64, f"{name} {tokens}x{hidden}x{inner} {top_k} of {experts}"
    peers = {"ours": lambda _: ops.moe_experts(*inputs, *SWIGLU)}
    for way, call in ways.items():
        if "eager" in way and name != "Qwen3-30B-A3B":
            continue  # a loop over experts, the same everywhere
        if ("batched" in way) == decode or (decode and "grouped" in way):
            peers[way] = lambda _, call=call: call(x, index, weights)
    if not decode:
        peers["torch _grouped_mm, products alone"] = grouped_mm_alone(module, x, index, top_k)
    some = list(range(min(tokens, 4)))
    check = lambda: (
        [ops.moe_experts(*inputs, *SWIGLU)[some]],
        [torch.stack([token(module, x, index, weights, t) for t in some]).detach()],
    )
    moved = 3 * inner * hidden * 2 * index.unique().numel() if decode else 0
    with torch.no_grad():
        c.run("moe_experts_decode" if decode else "moe_experts", shape, peers, moved, check=check)
    if decode:
        return
    leaf, dy = x.clone().requires_grad_(), torch.randn_like(x)

    def both(call):
        def run(_):
            leaf.grad = up.grad = down.grad = None
            call(leaf, index, weights).backward(dy)

        return run

    def ours(_):
        saved = ops.moe_experts_train(*inputs, *SWIGLU)[1:]
        ops.moe_experts_bwd_(dy, *inputs, *saved, *SWIGLU, True)

    peers = {"ours": ours} | {way: both(call) for way, call in ways.items() if "grouped" in way}
    gradients = (x.numel() + up.numel() + down.numel()) * 2
    c.run("moe_experts_fwd_bwd", shape, peers, memory=memory_of(peers, gradients, leaf, up, down))
