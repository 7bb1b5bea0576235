"""Random tiny models as transformers computes them: what models_test compares with.

    python parity_oracle.py OUT SEED

Writes OUT/<case>/ as save_pretrained does, and OUT/<case>/expected.safetensors:
    input_ids, labels [2, time]   logits [2, time, vocab]   loss, loss_items   grad.<parameter>
    mask [2, time], masked_logits         the same ids with the first row padded on the left
    bf16_logits                           the model and its arithmetic in bfloat16
    prompt [1, n], greedy [1, n + new]    generate(do_sample=False)
One process for all cases: importing transformers is the slow part.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"

import torch
import transformers
from safetensors.torch import save_file

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
BASE = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5)


def rope(kind, theta=10000.0, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **more))


# name -> family, what differs from BASE, length of the sequences
CASES = {
    "llama_plain": ("llama", dict(), 17),
    "llama_mha_tied": ("llama", dict(num_key_value_heads=6, tie_word_embeddings=True), 9),
    "llama_mqa_biases": ("llama", dict(num_key_value_heads=1, attention_bias=True, mlp_bias=True), 20),
    "llama_head_dim": ("llama", dict(head_dim=22, num_attention_heads=4, hidden_size=36, num_key_value_heads=2), 13),
    "llama_odd_sizes": ("llama", dict(vocab_size=101, hidden_size=30, intermediate_size=37, num_attention_heads=3,
                                      num_key_value_heads=3, num_hidden_layers=1), 7),
    "llama_linear": ("llama", dict(**rope("linear", factor=2.5)), 19),
    "llama_dynamic_short": ("llama", dict(**rope("dynamic", factor=4.0)), 12),
    "llama_dynamic_long": ("llama", dict(max_position_embeddings=16, **rope("dynamic", factor=4.0)), 24),
    "llama_llama3": ("llama", dict(tie_word_embeddings=True, rope_parameters=dict(rope_theta=500000.0, **LLAMA3)), 40),
    "llama_yarn": ("llama", dict(**rope("yarn", factor=4.0, original_max_position_embeddings=32)), 33),
    "llama_yarn_mscale": ("llama", dict(**rope("yarn", factor=8.0, original_max_position_embeddings=16, mscale=0.7,
                                               mscale_all_dim=1.2, beta_fast=16.0, beta_slow=2.0, truncate=False)), 21),
    "llama_longrope_short": ("llama", dict(**rope("longrope", factor=4.0, original_max_position_embeddings=64,
                                                  short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0, 3.0, 4.0, 5.0])), 18),
    "llama_longrope_long": ("llama", dict(**rope("longrope", original_max_position_embeddings=16,
                                                 short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0, 3.0, 4.0, 5.0])), 30),
    "llama_gelu": ("llama", dict(hidden_act="gelu_pytorch_tanh"), 11),
    "llama_quick_gelu": ("llama", dict(hidden_act="quick_gelu", rms_norm_eps=1e-3), 11),
    "qwen3_plain": ("qwen3", dict(head_dim=16), 17),
    "qwen3_tied_mqa": ("qwen3", dict(head_dim=8, num_key_value_heads=1, tie_word_embeddings=True), 14),
    "qwen3_bias_yarn": ("qwen3", dict(head_dim=12, attention_bias=True, **rope("yarn", 1e6, factor=4.0,
                                      original_max_position_embeddings=32)), 26),
    "qwen3_default_head_dim": ("qwen3", dict(hidden_size=20, num_attention_heads=2, num_key_value_heads=2), 6),
    "qwen3_linear_gelu": ("qwen3", dict(head_dim=10, hidden_act="gelu", **rope("linear", factor=3.0)), 15),
}
CLASSES = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
           "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM)}


def randomise(model):
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.data.normal_(0, 0.2).add_(0.0 if name.endswith("bias") else 1.0)
        else:
            p.data.normal_(0, 1.0 if "embed" in name else p.shape[1] ** -0.5)


def write_case(folder, family, more, time):
    config_class, model_class = CLASSES[family]
    config = config_class(**{**BASE, **more}, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = model_class(config)
    randomise(model)
    model.eval()
    model.save_pretrained(folder)
    ids = torch.randint(3, config.vocab_size, (2, time))
    labels = ids.clone()
    labels[0, 1:3] = -100
    out = {"input_ids": ids, "labels": labels}

    result = model(input_ids=ids, labels=labels, use_cache=False)
    result.loss.backward()
    out["logits"], out["loss"] = result.logits.detach(), result.loss.detach()
    out |= {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    with torch.no_grad():
        out["loss_items"] = model(input_ids=ids, labels=labels, num_items_in_batch=7, use_cache=False).loss
        mask = torch.ones_like(ids)
        mask[0, : time // 2] = 0
        position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
        out["mask"], out["position_ids"] = mask, position_ids
        out["masked_logits"] = model(input_ids=ids, attention_mask=mask, position_ids=position_ids, use_cache=False).logits
        out["prompt"] = ids[:1, :5].clone()
        # A fresh module: dynamic rotary embeddings remember the longest sequence that they have seen.
        fresh = model_class(config).eval()
        fresh.load_state_dict(model.state_dict())
        out["greedy"] = fresh.generate(out["prompt"], max_new_tokens=12, do_sample=False, eos_token_id=None)
        for p in fresh.parameters():  # not .to(): rotary frequencies stay float32, as from_pretrained has them
            p.data = p.data.bfloat16()
        out["bf16_logits"] = fresh(input_ids=ids, use_cache=False).logits
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(folder, "expected.safetensors"))


def main():
    root, seed = sys.argv[1], int(sys.argv[2])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    for name, (family, more, time) in CASES.items():
        write_case(os.path.join(root, name), family, more, time)
    with open(os.path.join(root, "cases.json"), "w") as f:
        json.dump(list(CASES), f)


if __name__ == "__main__":
    main()
