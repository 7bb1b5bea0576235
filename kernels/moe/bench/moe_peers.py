"""Experts of a mixture on a GPU beside transformers' ways of running them, and Liger's; bench/peers.py runs it.

batched_mm copies an expert's weights for each assignment, 1.2 TB at 16384 tokens of Qwen3-30B-A3B's: at decode steps alone.
Saved activations: what a forward for training leaves in memory for its backward, and x."""

from typing import NamedTuple

import torch
from bench.lib.gpu_common import memory_of

INF = float("inf")
SWIGLU = ("swiglu", 1.0, INF, False, False, False)
OAI = ("swiglu_oai", 1.702, 7.0, True, True, False)  # alpha, limit, gate and value in turns, weights [in, out]


class Sizes(NamedTuple):
    hidden: int
    inner: int
    experts: int
    top_k: int
    options: tuple = SWIGLU


SHAPES = {
    "Qwen3-30B-A3B": Sizes(2048, 768, 128, 8),
    "OLMoE": Sizes(2048, 1024, 64, 8),
    "Mixtral": Sizes(4096, 14336, 8, 2),
    "gpt-oss-20b": Sizes(2880, 2880, 32, 4, OAI),
}


def experts_of(s: Sizes):
    """transformers' experts class with random weights, and its functions for it."""
    from transformers import GptOssConfig, Qwen3MoeConfig
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    common = dict(hidden_size=s.hidden, num_experts_per_tok=s.top_k)
    with torch.device("cuda"):
        if s.options is OAI:
            module = GptOssExperts(GptOssConfig(intermediate_size=s.inner, num_local_experts=s.experts, **common))
        else:
            module = Qwen3MoeExperts(Qwen3MoeConfig(moe_intermediate_size=s.inner, num_experts=s.experts, **common))
    module = module.bfloat16()
    for name, parameter in module.named_parameters():
        parameter.data.normal_(std=0.02 if "bias" in name else (s.inner if "down" in name else s.hidden) ** -0.5)
    eager = type(module).forward.__wrapped__
    ways = {"transformers eager": lambda *a: eager(module, *a)}
    for name in ("grouped_mm", "batched_mm"):
        ways[f"transformers {name}"] = lambda *a, f=ALL_EXPERTS_FUNCTIONS[name]: f(module, *a)
    return module, ways


def ligers(liger, module):
    """Its function, with its widest tile as the only choice. All its 240 configurations a shape take minutes to
    compile."""
    from liger_kernel.ops import fused_moe_kernels as kernels

    for tuner in vars(kernels).values():
        if configs := getattr(tuner, "configs", None):
            most = {key: max(c.kwargs[key] for c in configs) for key in configs[0].kwargs}
            if "BLOCK_H" in most:  # the sum over a token's experts: experts of a token at once
                most["BLOCK_K"] = 8
            tuner.configs = [c for c in configs if c.kwargs == most]

    def call(x, index, weights):
        return liger.LigerFusedMoEFunction.apply(x, module.gate_up_proj, module.down_proj, index.int(), weights)

    return call


def routed(tokens, s: Sizes):
    x = torch.randn(tokens, s.hidden, device="cuda").bfloat16()
    chosen = torch.randn(tokens, s.experts, device="cuda").softmax(-1).topk(s.top_k)
    return x, chosen.indices, chosen.values.bfloat16()


def grouped_mm_alone(module, x, index, s: Sizes):
    """Both products of torch's own over rows that lie sorted already, without all else."""
    rows = x.repeat_interleave(s.top_k, 0)
    inner = torch.randn(rows.shape[0], s.inner, device="cuda").bfloat16()
    offsets = torch.bincount(index.flatten(), minlength=s.experts).cumsum(0).int()
    by_inputs = lambda w: w.detach() if s.options is OAI else w.detach().transpose(1, 2)
    up, down = by_inputs(module.gate_up_proj), by_inputs(module.down_proj)

    def call(_):
        torch._grouped_mm(rows, up, offs=offsets)
        torch._grouped_mm(inner, down, offs=offsets)

    return call


def token(module, x, index, weights, t, options):
    """One token's result in float64; products, bias and what is between them as the classes of transformers have them."""
    total = 0
    for e, score in zip(index[t].tolist(), weights[t].double()):
        up, down, v = module.gate_up_proj[e].double(), module.down_proj[e].double(), x[t].double()
        if options is OAI:
            h = v @ up + module.gate_up_proj_bias[e].double()
            gate, value = h[::2].clamp(max=7.0), h[1::2].clamp(-7.0, 7.0) + 1
            y = gate * torch.sigmoid(1.702 * gate) * value @ down + module.down_proj_bias[e].double()
        else:
            gate, value = (up @ v).chunk(2)
            y = down @ (torch.nn.functional.silu(gate) * value)
        total = total + score * y
    return total


def held(call) -> int:
    """Bytes that are there after a call, over what was there before it, as long as its result is."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated()
    del result
    return after - before


def run(c):
    for name, sizes in SHAPES.items():
        if not c.wants_some(("moe_experts", "moe_experts_fwd_bwd", "moe_experts_decode", "moe_experts_saved"), name):
            continue
        module, ways = experts_of(sizes)
        if c.liger and sizes.options is SWIGLU:
            ways["Liger"] = ligers(c.liger, module)
        for tokens in (16384, 1, 4, 16, 64) if name == "Qwen3-30B-A3B" else (16384,):
            one(c, name, module, ways, tokens, sizes)
        del module, ways
        torch.cuda.empty_cache()


def one(c, name, module, ways, tokens, s: Sizes):
    ops, (x, index, weights) = c.ops["moe"], routed(tokens, s)
    parameters = dict(module.named_parameters())
    up, down = parameters["gate_up_proj"], parameters["down_proj"]
    biases = [parameters.get(f"{n}_bias") for n in ("gate_up_proj", "down_proj")]
    detached = lambda t: None if t is None else t.detach()
    inputs = (x, index, weights, up.detach(), detached(biases[0]), down.detach(), detached(biases[1]))
    decode, shape = tokens <= 64, f"{name} {tokens}x{s.hidden}x{s.inner} {s.top_k} of {s.experts}"
    peers = {"ours": lambda _: ops.moe_experts(*inputs, *s.options)}
    for way, call in ways.items():
        if not ("batched" in way and not decode or "eager" in way and decode):
            peers[way] = lambda _, call=call: call(x, index, weights)
    if not decode:
        peers["torch _grouped_mm, products alone"] = grouped_mm_alone(module, x, index, s)
    some = list(range(min(tokens, 4)))
    check = lambda: (
        [ops.moe_experts(*inputs, *s.options)[some]],
        [torch.stack([token(module, x, index, weights, t, s.options) for t in some]).detach()],
    )
    moved = 3 * s.inner * s.hidden * 2 * index.unique().numel() if decode else 0
    with torch.no_grad():
        c.run("moe_experts_decode" if decode else "moe_experts", shape, peers, moved, check=check)
    if decode or not c.wants_some(("moe_experts_fwd_bwd", "moe_experts_saved"), shape):
        return
    leaf, dy = x.clone().requires_grad_(), torch.randn_like(x)

    def both(call):
        def run(_):
            leaf.grad = None
            module.zero_grad()
            call(leaf, index, weights).backward(dy)

        return run

    def ours(_):
        saved = ops.moe_experts_train(*inputs, *s.options)[1:]
        ops.moe_experts_bwd_(dy, *inputs, *saved, *s.options, True)

    training = {way: call for way, call in ways.items() if "grouped" in way or way == "Liger"}
    peers = {"ours": ours} | {way: both(call) for way, call in training.items()}
    gradients = (x.numel() + sum(p.numel() for p in parameters.values())) * 2
    c.run("moe_experts_fwd_bwd", shape, peers, memory=memory_of(peers, gradients, leaf, *parameters.values()))
    if c.wants("moe_experts_saved", shape):
        module.zero_grad(set_to_none=True)
        kept = {way: held(lambda call=call: call(leaf, index, weights)) for way, call in training.items()}
        kept["x and h, counted"] = (x.numel() + tokens * s.top_k * up.shape[1 if s.options is SWIGLU else 2]) * 2
        report_saved(c, shape, held(lambda: ops.moe_experts_train(*inputs, *s.options)), kept)


def report_saved(c, shape, ours, kept):
    """held() has the result y, which nothing keeps, in place of x, which is kept and as large."""
    for way, number in kept.items():
        c.report.add(
            kind="memory", what="moe_experts_saved", shape=shape, dtype="bfloat16", unit="bytes", ours=ours, peer=number,
            peer_name=c.names.get(way, way), target=round(1 / 1.05, 3) if "counted" in way else "",
        )  # fmt: skip
