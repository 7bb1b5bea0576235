"""Random tiny models with LoRA adapters, as peft saves and computes them: what lora_test compares with.

    python lora_oracle.py OUT

Writes for each case OUT/<case>/model and OUT/<case>/adapter as save_pretrained does, OUT/<case>/merged where peft's
merge_and_unload() is right (of tied weights it changes both), and OUT/<case>/expected.safetensors:
    input_ids [2, time]   logits [2, time, vocab] float32   bf16_logits, the base model in bfloat16
    base_logits           without the adapter
    greedy [1, n + new]   generate(do_sample=False) of the first n = 5 ids of the first row
    loss                  of input_ids as labels, and grad.<name>: its gradient of each tensor of the adapter's file
                          that is trained
and OUT/targets.json: peft's target_modules for each model_type.
"""

import json
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"

import peft
import torch
import transformers
from safetensors.torch import save_file

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
MIXTURE = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
PATTERNS = {
    "rank_pattern": {"o_proj": 3, "model.layers.1.mlp.(gate|up)_proj": 5, "layers.0.self_attn.q_proj": 1},
    "alpha_pattern": {"v_proj": 11, "down_proj": 2.5},
}

GPT2 = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}

# case: the family, what its config differs in, and peft's
CASES = {
    "llama_all_linear": ("llama", {}, {"target_modules": "all-linear", **PATTERNS}),
    "llama_rslora": ("llama", {}, {"target_modules": "all-linear", "use_rslora": True, **PATTERNS}),
    "llama_embedding_head": ("llama", {}, {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "llama_tied_both": ("llama", {"tie_word_embeddings": True}, {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "llama_tied_head": ("llama", {"tie_word_embeddings": True}, {"target_modules": ["v_proj", "lm_head"]}),
    "llama_tied_ensured": (
        "llama", {"tie_word_embeddings": True}, {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True}),
    "llama_tied_saved": ("llama", {"tie_word_embeddings": True}, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "llama_tied_saved_ensured": (
        "llama", {"tie_word_embeddings": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "llama_saved": ("llama", {}, {"target_modules": ["up_proj"], "modules_to_save": ["lm_head", "embed_tokens", "norm"]}),
    "llama_saved_mlp": ("llama", {}, {"target_modules": "all-linear", "modules_to_save": ["mlp"]}),
    "llama_bias_all": ("llama", {"attention_bias": True, "mlp_bias": True}, {"target_modules": ["q_proj", "down_proj"], "bias": "all"}),
    "llama_bias_lora_only": ("llama", {"attention_bias": True}, {"target_modules": ATTENTION, "bias": "lora_only"}),
    "llama_lora_bias": ("llama", {"attention_bias": True}, {"target_modules": ATTENTION, "lora_bias": True}),
    "llama_dora": ("llama", {"attention_bias": True}, {"target_modules": "all-linear", "use_dora": True}),
    "llama_layers": ("llama", {}, {"target_modules": ["q_proj", "mlp.up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"}),
    "llama_one_layer": ("llama", {}, {"target_modules": ["down_proj", "model.layers.1.mlp.up_proj"], "layers_to_transform": 0}),
    "llama_pattern": (
        "llama", {}, {"target_modules": r".*\.(self_attn\.[qv]_proj|mlp\.\w+_proj)", "exclude_modules": r"model\.layers\.0\.mlp\..*"}),
    "llama_excluded": ("llama", {}, {"target_modules": "all-linear", "exclude_modules": ["k_proj", "model.layers.1.mlp.gate_proj"]}),
    "llama_orthogonal": ("llama", {}, {"target_modules": ATTENTION, "init_lora_weights": "orthogonal", "fan_in_fan_out": True}),
    "qwen2_all_linear": ("qwen2", {}, {"target_modules": "all-linear", **PATTERNS}),
    "qwen2_dora": ("qwen2", {}, {"target_modules": ATTENTION, "use_dora": True}),
    "qwen3_all_linear": ("qwen3", {"head_dim": 8}, {"target_modules": "all-linear", "modules_to_save": ["q_norm", "lm_head"]}),
    "mixtral_attention": ("mixtral", MIXTURE, {"target_modules": ATTENTION}),
    "mixtral_router_saved": ("mixtral", MIXTURE, {"target_modules": ["q_proj"], "modules_to_save": ["gate", "experts"]}),
    "qwen2_moe_all_linear": ("qwen2_moe", QWEN_MOE, {"target_modules": "all-linear"}),
    "gpt_oss_attention": ("gpt_oss", {**MIXTURE, "head_dim": 8}, {"target_modules": ATTENTION}),
    "gpt2_all_linear": ("gpt2", GPT2, {"target_modules": "all-linear", "fan_in_fan_out": True}),
    "gpt2_dora": ("gpt2", GPT2, {"target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True, "use_dora": True}),
    "gpt_neox_all_linear": ("gpt_neox", {}, {"target_modules": "all-linear", "bias": "lora_only"}),
    "falcon_dora": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2},
                    {"target_modules": ["query_key_value", "dense_h_to_4h"], "use_dora": True}),
    "phi_all_linear": ("phi", {}, {"target_modules": "all-linear"}),
    "phi3_all_linear": ("phi3", {}, {"target_modules": "all-linear", "rank_pattern": {"qkv_proj": 6}}),
    "phi3_dora": ("phi3", {}, {"target_modules": ["qkv_proj", "gate_up_proj"], "use_dora": True}),
    "phi3_saved": ("phi3", {}, {"target_modules": ["o_proj"], "modules_to_save": ["qkv_proj"]}),
    "gemma_all_linear": ("gemma", {"head_dim": 8}, {"target_modules": "all-linear"}),
    "gemma_embedding": ("gemma", {"head_dim": 8}, {"target_modules": ["q_proj", "embed_tokens"]}),
    "gemma2_all_linear": ("gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8}, {"target_modules": "all-linear"}),
    "gemma3_embedding": (
        "gemma3_text", {"head_dim": 8, "query_pre_attn_scalar": 8}, {"target_modules": ["q_proj", "embed_tokens"]}),
    "olmo2_all_linear": ("olmo2", {}, {"target_modules": "all-linear"}),
    "deepseek_v3_attention": (
        "deepseek_v3",
        {"num_key_value_heads": 4, "first_k_dense_replace": 2, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
         "qk_rope_head_dim": 8, "v_head_dim": 10},
        {"target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]}),
    "mamba_projections": ("mamba", {"state_size": 6, "time_step_rank": 5}, {"target_modules": ["in_proj", "x_proj", "embeddings"]}),
    "jamba_attention_mixer": (
        "jamba",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "mamba_d_state": 6, "mamba_dt_rank": 5},
        {"target_modules": ["q_proj", "o_proj", "in_proj", "gate_proj"], "modules_to_save": ["final_layernorm"]}),
}  # fmt: skip


def spread(model):
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.data.normal_(0, 0.2).add_(0.0 if name.endswith("bias") else 1.0)
        else:
            p.data.normal_(0, 1.0 if "embed" in name else p.shape[1] ** -0.5)


def trained(model):
    """What training would have changed, changed at random: as much as the layers' own results."""
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.data.add_(torch.randn_like(p) * (0.25 if "lora_" in name and "magnitude" not in name else 0.1))


def gradients(model, ids):
    """By the names of the adapter's file."""
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    found = {"loss": loss.detach()}
    for name, p in model.named_parameters():
        if p.requires_grad:
            name = name.replace(".modules_to_save.default", "").replace("magnitude_vector.default.weight", "magnitude_vector")
            found["grad." + name.replace(".default", "")] = p.grad
    return found


def write_case(folder, family, differs, options):
    eager = "eager" if family in ("gemma2", "gpt_oss") else None
    config = transformers.AutoConfig.for_model(
        **{**SIZES, **differs, "model_type": family}, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    base = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=eager)
    spread(base)
    base.eval()
    base.save_pretrained(folder + "/model")
    ids = torch.randint(3, config.vocab_size, (2, 11))
    out = {"input_ids": ids}
    with torch.no_grad():
        out["base_logits"] = base(input_ids=ids, use_cache=False).logits
    lora = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", "lora_dropout": 0.1, **options})
    made = peft.get_peft_model(base, lora)
    trained(made)
    made.save_pretrained(folder + "/adapter")

    def loaded(dtype, trains=False):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder + "/model", dtype=dtype, attn_implementation=eager)
        return peft.PeftModel.from_pretrained(model, folder + "/adapter", is_trainable=trains).eval()

    model = loaded(torch.float32)
    with torch.no_grad():
        out["logits"] = model(input_ids=ids, use_cache=False).logits
        out["greedy"] = model.generate(input_ids=ids[:1, :5], max_new_tokens=12, do_sample=False, eos_token_id=None)
        out["bf16_logits"] = loaded(torch.bfloat16)(input_ids=ids, use_cache=False).logits
    out |= gradients(loaded(torch.float32, trains=True), ids)
    save_file({k: v.contiguous() for k, v in out.items()}, folder + "/expected.safetensors")
    if not (config.tie_word_embeddings and ("embed" in str(options) or "lm_head" in str(options))):
        model.merge_and_unload().save_pretrained(folder + "/merged")
        loaded(torch.bfloat16).merge_and_unload().save_pretrained(folder + "/merged_bf16")


def main():
    root = sys.argv[1]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    with open(os.path.join(root, "targets.json"), "w") as file:
        json.dump(peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING, file)
    for i, (name, case) in enumerate(CASES.items()):
        torch.manual_seed(i)
        write_case(os.path.join(root, name), *case)


if __name__ == "__main__":
    main()
