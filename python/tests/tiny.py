"""Tiny models of every family, and what they have in common in tests."""

import contextlib
import copy

import torch
import transformers
from transformers import AutoModelForCausalLM

import hotswap

HEADS = dict(num_attention_heads=4, num_key_value_heads=2)
SIZES = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, max_position_embeddings=64)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
BASE = {**HEADS, **SIZES, **TOKENS}
MOE = dict(num_experts_per_tok=2, output_router_logits=True)
LATENT = dict(num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8,
              n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1,
              n_group=1, topk_group=1)  # fmt: skip
LINEAR = dict(head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
              layer_types=["linear_attention", "full_attention"])  # fmt: skip
# sliding and compressed attention, experts chosen by token and by score
V4 = dict(num_key_value_heads=1, head_dim=8, partial_rotary_factor=0.5, q_lora_rank=8, o_groups=2, o_lora_rank=8,
          layer_types=["sliding_attention", "heavily_compressed_attention"],
          compress_rates=dict(compressed_sparse_attention=2, heavily_compressed_attention=4), mlp_layer_types=["hash_moe", "moe"],
          hc_mult=2, hc_sinkhorn_iters=2, n_routed_experts=4, moe_intermediate_size=16)  # fmt: skip
MAMBA = dict(mamba_d_ssm=32, mamba_n_heads=4, mamba_d_state=8, mamba_chunk_size=8, mamba_rms_norm=True,
             mlp_multipliers=[0.7, 1.3], key_multiplier=0.8, embedding_multiplier=3.0, lm_head_multiplier=0.5)  # fmt: skip
YARN = dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)

# fmt: off
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", dict(head_dim=8)),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", dict(head_dim=8)),
    "gemma": ("GemmaConfig", dict(head_dim=8)),
    "gemma2": ("Gemma2Config", dict(head_dim=8, final_logit_softcapping=3.0)),
    "gemma3_text": ("Gemma3TextConfig", dict(head_dim=8)),
    "phi3": ("Phi3Config", dict(partial_rotary_factor=0.5)),
    "mixtral": ("MixtralConfig", dict(num_local_experts=4, **MOE)),
    "qwen3_moe": ("Qwen3MoeConfig", dict(head_dim=8, num_experts=4, moe_intermediate_size=16, decoder_sparse_step=2, **MOE)),
    "gpt_oss": ("GptOssConfig", dict(head_dim=8, num_local_experts=4, rope_parameters=YARN, **MOE)),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", {}),
    "granite": ("GraniteConfig", dict(logits_scaling=2.0)),
    "smollm3": ("SmolLM3Config", {}),
    "glm4": ("Glm4Config", dict(head_dim=8)),
    "exaone4": ("Exaone4Config", dict(layer_types=["sliding_attention", "full_attention"], sliding_window=8)),
    "gemma4_text": ("Gemma4TextConfig", dict(head_dim=8, global_head_dim=8, hidden_size_per_layer_input=8,
                                             vocab_size_per_layer_input=97, final_logit_softcapping=5.0)),
    "hunyuan_v1_dense": ("HunYuanDenseV1Config", dict(head_dim=8)),
    "hunyuan_v1_moe": ("HunYuanMoEV1Config", dict(head_dim=8, num_experts=4, moe_topk=2)),
    "ministral": ("MinistralConfig", dict(head_dim=8)),
    "qwen3_next": ("Qwen3NextConfig", dict(num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16,
                                           **LINEAR, **MOE)),
    "deepseek_v2": ("DeepseekV2Config", LATENT),
    "deepseek_v3": ("DeepseekV3Config", dict(rope_interleave=False, **LATENT)),
    "deepseek_v4": ("DeepseekV4Config", dict(**V4, **MOE)),
    "falcon_h1": ("FalconH1Config", MAMBA),
    "nemotron": ("NemotronConfig", {}),
    # without a name of Liger's
    "qwen3_5_text": ("Qwen3_5TextConfig", LINEAR),
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", dict(num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16,
                                                      **LINEAR, **MOE)),
    "glm": ("GlmConfig", dict(head_dim=8)),
    "llama4_text": ("Llama4TextConfig", dict(head_dim=8, intermediate_size_mlp=48, num_local_experts=4,
                                             interleave_moe_layer_step=2, no_rope_layers=[1, 0])),
    "helium": ("HeliumConfig", dict(head_dim=8)),
    "olmoe": ("OlmoeConfig", dict(num_experts=4, **MOE)),
    "qwen2_moe": ("Qwen2MoeConfig", dict(num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16, **MOE)),
}
# fmt: on
# where every family costs too much
NAMED = "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi3 mixtral qwen3_moe gpt_oss".split()
NOT_LIGERS = {"qwen3_5_text", "qwen3_5_moe_text", "glm", "llama4_text", "helium", "olmoe", "qwen2_moe"}


def model(family="llama", seed=0, **changes):
    name, own = FAMILIES[family]
    config = getattr(transformers, name)(**{**BASE, **own, **changes})
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # norms that are not all ones or zeros
        for name, p in made.named_parameters():
            if "norm" in name:
                p += 0.1 * torch.randn_like(p)
    return made


def batch(rows=2, columns=12, seed=1):
    generator = torch.Generator("cpu").manual_seed(seed)
    ids = torch.randint(3, 97, (rows, columns), generator=generator, device="cpu").to(torch.get_default_device())
    labels = ids.clone()
    labels[0, :3] = -100
    return dict(input_ids=ids, labels=labels)


def pattern(rows=2, columns=12, seed=1):
    """A batch that a model can learn from: each token is the one before plus three."""
    generator = torch.Generator("cpu").manual_seed(seed)
    start = torch.randint(0, 94, (rows, 1), generator=generator, device="cpu").to(torch.get_default_device())
    ids = 3 + (start + 3 * torch.arange(columns)) % 94
    return dict(input_ids=ids, labels=ids.clone())


def twin(stock, **options):
    """The same model, swapped."""
    return hotswap.kernelize(copy.deepcopy(stock), **options)


def close(got, want, limit=2e-6):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= limit * want.double().norm() + 1e-12


@contextlib.contextmanager
def routed_as(wide, data, *others):
    """Inside, the routers of `others` give what those of `wide` give for this batch: a number that was rounded before a router
    may choose another expert, and what comes behind it is another function then. Routers get no gradients."""
    routers = lambda m: [part for part in m.modules() if "Router" in type(part).__name__]
    kept, hooks = [], [part.register_forward_hook(lambda _, __, given: kept.append(given)) for part in routers(wide)]
    with torch.no_grad():
        wide(**data)
    for hook in hooks:
        hook.remove()
    hooks = []
    for m in others:
        assert len(routers(m)) == len(kept)
        for part, given in zip(routers(m), kept, strict=True):
            as_wides = lambda _, __, own, given=given: tuple(
                g.to(o.dtype) for g, o in zip(given, own, strict=True)
            )
            hooks.append(part.register_forward_hook(as_wides))
    yield
    for hook in hooks:
        hook.remove()


def gradients(m, loss):
    m.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad for name, p in m.named_parameters() if p.grad is not None}


def same_gradients(got, want, limit=1e-5):
    assert got.keys() == want.keys()
    whole = sum(float(g.double().norm()) ** 2 for g in want.values()) ** 0.5
    for name in want:  # a gradient that is nothing beside the others is only rounding
        wide = want[name].double()
        apart = (got[name].double() - wide).norm()
        assert apart <= limit * wide.norm() + 1e-7 * whole, f"{name}: {apart / wide.norm()}"


class Calls:
    """with Calls() as c: ...; c.made == {"norm.rms_norm": 5}: the ops of all packages that ran inside. Those that only a GPU's
    training runs count as what runs elsewhere; c.own has them apart."""

    INSTEAD = {"norm.add_rms_norm_fwd": "norm.rms_norm_fwd", "norm.add_rms_norm_bwd": "norm.rms_norm_bwd"} | {
        f"mlp.{act}_bwd_again_": f"mlp.{act}_bwd_" for act in ("swiglu", "geglu")
    }
    NAMES = {
        "norm": tuple(f"{n}{part}" for n in ("rms_norm", "layer_norm") for part in ("", "_fwd", "_bwd"))
        + ("add_rms_norm_fwd", "add_rms_norm_bwd"),
        "activation": tuple(f"{a}{b}" for a in ("silu", "gelu", "gelu_tanh", "gelu_quick", "relu_squared") for b in ("", "_bwd")),
        "rotary": ("rotary", "rotary_bwd"),
        "mlp": tuple(f"{a}{b}" for a in ("swiglu", "geglu") for b in ("", "_bwd", "_bwd_", "_bwd_again_")),
        "moe": ("moe_experts", "moe_experts_train", "moe_experts_bwd", "moe_experts_bwd_"),
        "deformable": tuple(f"deformable_attention{a}{b}" for a in ("", "_points") for b in ("", "_bwd")),
        "mamba": tuple(f"{a}{b}" for a in ("selective_scan", "ssd") for b in ("", "_fwd", "_bwd"))
        + ("causal_conv1d", "causal_conv1d_bwd", "causal_conv1d_update", "selective_state_update")
        + ("gated_rms_norm", "gated_rms_norm_fwd", "gated_rms_norm_bwd"),
        "loss": ("cross_entropy", "cross_entropy_fwd", "cross_entropy_fwd_", "cross_entropy_bwd", "linear_cross_entropy", "linear_cross_entropy_fwd"),
    }

    def _now(self):
        from hotswap.core.packages import package

        return {f"{p}.{op}": package(p).calls(op) for p, ops in self.NAMES.items() for op in ops}

    def __enter__(self):
        self.before = self._now()
        return self

    def __exit__(self, *_):
        self.own, self.made = {op: n - self.before[op] for op, n in self._now().items() if n != self.before[op]}, {}
        for op, n in self.own.items():
            name = self.INSTEAD.get(op, op)
            self.made[name] = self.made.get(name, 0) + n


def same_step(swapped, stock, data, limit=2e-6, gradient_limit=1e-5, run=None):
    """One forward and backward of each: the same loss and gradients. What the swapped one returned, and its calls.
    run: called in place of `swapped`, whose gradients are looked at all the same (its compiled form)."""
    with Calls() as calls:
        got = (swapped if run is None else run)(**data)  # a compiled model has no truth value
        mine = gradients(swapped, got.loss)
    want = stock(**data)
    close(got.loss, want.loss, limit)
    same_gradients(mine, gradients(stock, want.loss), gradient_limit)
    return got, calls.made


# ---- functions beside float64's ------------------------------------------------------------------------------------

LIMIT = {torch.float32: 5e-6, torch.bfloat16: 2**-6}


def against(ours, wide, inputs):
    """Value and gradients of ours(*inputs) beside wide(*float64 copies)."""
    dtype = inputs[0].dtype
    inputs = [t.requires_grad_() for t in inputs]
    double = [t.detach().double().requires_grad_() for t in inputs]
    got, want = ours(*inputs), wide(*double)
    weight = torch.randn_like(want)
    close(got, want, LIMIT[dtype])
    for g, w in zip(torch.autograd.grad(got, inputs, weight.to(got.dtype)), torch.autograd.grad(want, double, weight)):
        close(g, w, 3 * LIMIT[dtype])
