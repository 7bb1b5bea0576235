"""For every family, each key of its transformers config class with other values, absent and null: what transformers
computes of such a folder, which models_parity_test compares with.

    python config_keys_oracle.py OUT

An eighth of the changed configs, or all of them with HOTSWAP_CONFIG_KEYS=all. Writes OUT/weights-<n>/ as save_pretrained
does, and OUT/cases.json with a row for each changed config that transformers loads and computes with:
    {"family", "key", "change", "config": config.json's content, "weights": a folder's name, "logits": a tensor's name}
and OUT/expected.safetensors with input_ids [2, time] and the logits, [2, time, vocab] each. What transformers itself
refuses has no row. Weights are drawn by their names, so configs of equal shapes share a folder.
"""

import json
import os
import sys
import zlib

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"

import torch
import transformers
from parity_oracle import norm_by_groups
from safetensors.torch import save_file

BASE = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-5)  # fmt: skip
SLIDING = dict(BASE, sliding_window=4)
MIXTURE = dict(BASE, num_experts_per_tok=2, moe_intermediate_size=8)
LATENT = dict(BASE, num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6)
STATE_SPACE = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, state_size=4)
GATED_DELTA = dict(layer_types=["linear_attention", "full_attention"], head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
                   linear_key_head_dim=4, linear_value_head_dim=6)  # fmt: skip
FAMILIES = {
    "llama": BASE,
    "mistral": SLIDING,
    "mixtral": dict(BASE, num_local_experts=4, num_experts_per_tok=2),
    "qwen2": dict(SLIDING, use_sliding_window=True, max_window_layers=1),
    "qwen2_moe": dict(MIXTURE, num_experts=4, shared_expert_intermediate_size=12),
    "qwen3": dict(BASE, head_dim=8),
    "qwen3_moe": dict(MIXTURE, num_experts=4, head_dim=8),
    "gemma": dict(BASE, head_dim=8),
    "gemma2": dict(SLIDING, head_dim=8),
    "gemma3_text": dict(SLIDING, head_dim=8),
    "phi3": BASE,
    "smollm3": dict(SLIDING, use_sliding_window=True),
    "olmo2": BASE,
    "olmo3": SLIDING,
    "olmoe": dict(BASE, num_experts=4, num_experts_per_tok=2),
    "granite": BASE,
    "deepseek_v2": dict(LATENT, num_experts_per_tok=2, moe_intermediate_size=8, first_k_dense_replace=1, n_routed_experts=4),
    "deepseek_v3": dict(LATENT, num_experts_per_tok=2, moe_intermediate_size=8, first_k_dense_replace=1, n_routed_experts=4,
                        n_group=2, topk_group=1),
    "gpt2": dict(n_embd=16, n_layer=2, n_head=4, n_positions=32, vocab_size=40, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0),
    "gpt_neox": dict(BASE, hidden_size=32),
    "phi": dict(BASE, hidden_size=32),
    "starcoder2": BASE,
    "cohere": BASE,
    "cohere2": SLIDING,
    "olmo": BASE,
    "stablelm": dict(BASE, hidden_size=32),
    "phimoe": dict(BASE, num_local_experts=4, num_experts_per_tok=2),
    "falcon": dict(BASE, hidden_size=32),
    "glm": dict(BASE, head_dim=8),
    "glm4": dict(BASE, head_dim=8),
    "glm4_moe": dict(MIXTURE, n_routed_experts=4, head_dim=8),
    "ernie4_5": dict(BASE, head_dim=8),
    "exaone4": SLIDING,
    "granitemoe": dict(BASE, num_local_experts=4, num_experts_per_tok=2),
    "gpt_oss": dict(SLIDING, head_dim=8, num_local_experts=4, num_experts_per_tok=2),
    "llama4_text": dict(BASE, head_dim=8, num_local_experts=4, intermediate_size_mlp=20, attention_chunk_size=4, floor_scale=4),
    "mamba": STATE_SPACE,
    "falcon_mamba": STATE_SPACE,
    "mamba2": dict(STATE_SPACE, num_heads=4, head_dim=8, n_groups=1, chunk_size=4),
    "bamba": dict(BASE, hidden_size=32, attn_layer_indices=[1], mamba_n_heads=4, mamba_d_state=4, mamba_chunk_size=4),
    "granitemoehybrid": dict(BASE, layer_types=["linear_attention", "full_attention"], mamba_n_heads=4, mamba_d_state=4,
                             mamba_chunk_size=4, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=12),
    "falcon_h1": dict(BASE, mamba_d_ssm=24, mamba_n_heads=4, mamba_d_state=4, mamba_chunk_size=4),
    "nemotron_h": dict(BASE, layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], mamba_num_heads=4,
                       mamba_head_dim=8, ssm_state_size=4, n_groups=2, chunk_size=4, head_dim=8, n_routed_experts=4,
                       num_experts_per_tok=2, moe_intermediate_size=8, moe_shared_expert_intermediate_size=12),
    "qwen3_next": dict(MIXTURE, num_experts=4, shared_expert_intermediate_size=12, **GATED_DELTA),
    "qwen3_5_text": dict(BASE, **GATED_DELTA),
    "qwen3_5_moe_text": dict(MIXTURE, num_experts=4, shared_expert_intermediate_size=12, **GATED_DELTA),
    "lfm2": dict(BASE, layer_types=["conv", "full_attention"], block_multiple_of=8),
    "jamba": dict(BASE, attn_layer_period=2, attn_layer_offset=1, num_experts=4, num_experts_per_tok=2, mamba_d_state=4),
}  # fmt: skip
ALL = os.environ.get("HOTSWAP_CONFIG_KEYS") == "all"
ALWAYS = {"nothing", "rope_interleave null", "norm_topk_prob null", "head_dim 1", "n_groups 2"}  # were wrong once
TOKENS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)

# Nothing that a forward computes with: what is returned or kept, special tokens, where a config came from.
NOT_COMPUTED_WITH = {
    "_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "id2label", "label2id", "model_type",
    "output_attentions", "output_hidden_states", "pad_token_id", "problem_type", "return_dict",
    "transformers_version", "use_cache",
}  # fmt: skip
TEXTS = {
    "hidden_act": ["gelu", "relu"],
    "hidden_activation": ["gelu", "relu"],
    "mlp_hidden_act": ["gelu", "relu"],
    "mamba_hidden_act": ["gelu"],
    "position_embedding_type": ["rope", "nope"],
    "time_step_init_scheme": ["constant"],
    "topk_method": ["group_limited_greedy"],
}
SCALED = {"rope_type": "linear", "rope_theta": 300.0, "factor": 3.0}
LAYERS = ["full_attention", "sliding_attention", "chunked_attention"]


def values_for(key, value, base):
    """Other values of the type that the key has, those that a real checkpoint could carry among them."""
    if key == "rope_parameters":
        by_type = isinstance(value, dict) and "full_attention" in value
        return [{k: SCALED for k in value} if by_type else SCALED, {"rope_type": "default", "rope_theta": 77.0},
                {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}]  # fmt: skip
    if key == "layer_types":
        kinds = [kind for kind in LAYERS if kind in (value or []) or kind != "chunked_attention"]
        return [[kind] * base["num_hidden_layers"] for kind in kinds] + [value[::-1]]
    if key == "time_step_limit":
        return [[0.2, 0.6]]
    if key in TEXTS:
        return TEXTS[key]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, 1, 0]
    if isinstance(value, float):
        return [value * 1.5 + 0.1, 0.0]
    if isinstance(value, list):
        return [value[::-1], [], [0], [1]]
    return [True, 2, 0.5]


def changes(config, base):
    """(key, what was done, the arguments of the config)"""
    for key, value in config.to_dict().items():
        if key in NOT_COMPUTED_WITH:
            continue
        for other in values_for(key, value, base):
            if other != value:
                yield key, f"{key} {json.dumps(other)}", {**base, key: other}
        if key in base:
            yield key, f"{key} absent", {k: v for k, v in base.items() if k != key}
        elif value is not None:
            yield key, f"{key} null", {**base, key: None}


def in_sample(family, change):
    return ALL or change in ALWAYS or zlib.crc32(f"{family} {change}".encode()) % 8 == 0


class Weights:
    """One folder for all models of the same names and shapes."""

    def __init__(self, root):
        self.root, self.folders = root, {}

    def fill(self, model):
        """Draws the model's weights; the name of the folder that holds them."""
        shapes = tuple((name, tuple(p.shape)) for name, p in model.named_parameters())
        for name, p in model.named_parameters():
            draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            scale = 0.2 if p.dim() == 1 else 1.0 if "embed" in name else p.shape[-1] ** -0.5
            p.data.normal_(0, scale, generator=draw)
            if p.dim() == 1 and not name.endswith("bias"):
                p.data.add_(1.0)
        key = (type(model).__name__, shapes)
        if key not in self.folders:
            self.folders[key] = f"weights-{len(self.folders)}"
            model.save_pretrained(os.path.join(self.root, self.folders[key]))
        return self.folders[key]


def loads(family, arguments):
    """The model that transformers makes of a config.json with these keys, or None where it refuses."""
    try:
        config = transformers.AutoConfig.for_model(family, **arguments)
        capped = getattr(config, "attn_logit_softcapping", None) is not None  # which sdpa leaves out
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager" if capped else None)
    except Exception:
        return None
    small = all(0 < p.numel() < 100_000 for p in model.parameters())
    return model.eval() if small else None


def logits_of(model, ids):
    """None where transformers cannot compute them."""
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits.contiguous()
    except Exception:
        return None
    return logits if logits.isfinite().all() else None


def main():
    root = sys.argv[1]
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    norm_by_groups()
    ids = torch.randint(3, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    weights, rows, expected = Weights(root), [], {"input_ids": ids}
    for family, sizes in FAMILIES.items():
        base = dict(sizes, **TOKENS)
        config = transformers.AutoConfig.for_model(family, **base)
        for key, change, arguments in [("", "nothing", base), *changes(config, base)]:
            model = loads(family, arguments) if in_sample(family, change) else None
            if model is None:
                continue
            folder = weights.fill(model)
            logits = logits_of(model, ids)
            if logits is None:
                continue
            name = f"logits.{len(rows)}"
            expected[name] = logits
            rows.append(dict(family=family, key=key, change=change, config={"model_type": family, **arguments},
                             weights=folder, logits=name))  # fmt: skip
    save_file(expected, os.path.join(root, "expected.safetensors"))
    with open(os.path.join(root, "cases.json"), "w") as f:
        json.dump(rows, f)


if __name__ == "__main__":
    main()
