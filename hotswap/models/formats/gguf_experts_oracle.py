"""Writes tiny mixtures of experts as llama.cpp's converter does, by its own package, and what transformers' models of the same
weights compute.

    python hotswap/models/formats/gguf_experts_oracle.py OUT

OUT/NAME/model.gguf            qwen3moe, llama with experts (Mixtral), gpt-oss; NAME is the architecture and the types of its experts
OUT/NAME/expected.safetensors  input_ids [2, time] and logits [2, time, vocab], float32, of the weights that the file stands for
"""

import os
import secrets
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that spin make each other slow where others compute too

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

seed = secrets.randbits(32)
random = np.random.default_rng(seed)
HIDDEN, INNER, HEADS, KV_HEADS, EXPERTS, USED, LAYERS, VOCAB = 256, 256, 4, 2, 6, 2, 2, 97
COMMON = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
              max_position_embeddings=64, num_experts_per_tok=USED, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=0)  # fmt: skip
# types that the package only reads: (bytes of a block, where in it the halves are that scale it)
READ_ONLY = {"Q4_K": (144, (0, 2)), "Q5_K": (176, (0, 2)), "Q6_K": (210, (208,))}
TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4")


def stored(kind, values):
    """What a file holds of a tensor, and the float32 weights that this stands for."""
    if kind == "F32":
        return values.astype(np.float32), values.astype(np.float32)
    kind_of = gguf.GGMLQuantizationType[kind]
    if kind in READ_ONLY:  # any codes, with scales that leave products of ordinary size
        size, halves = READ_ONLY[kind]
        raw = random.integers(0, 256, (*values.shape[:-1], values.shape[-1] // 256, size), dtype=np.uint8)
        for at in halves:
            scale = random.uniform(-1e-4, 1e-4, raw.shape[:-1]).astype(np.float16)
            raw[..., at : at + 2] = scale[..., None].view(np.uint8)
        raw = raw.reshape(*values.shape[:-1], -1)
    else:
        raw = quantize(values.astype(np.float32), kind_of)
    return raw, dequantize(raw, kind_of).reshape(values.shape).astype(np.float32)


class File:
    """A tensor is put into the file, and what it stands for comes back."""

    def __init__(self, folder, arch, feed_forward):
        folder.mkdir(parents=True)
        self.writer = gguf.GGUFWriter(folder / "model.gguf", arch)
        w = self.writer
        w.add_block_count(LAYERS), w.add_context_length(64), w.add_embedding_length(HIDDEN), w.add_feed_forward_length(feed_forward)
        w.add_head_count(HEADS), w.add_head_count_kv(KV_HEADS), w.add_layer_norm_rms_eps(1e-5), w.add_vocab_size(VOCAB)
        w.add_expert_count(EXPERTS), w.add_expert_used_count(USED)

    def put(self, name, kind, tensor):
        raw, values = stored(kind, tensor.detach().numpy())
        self.writer.add_tensor(name, np.ascontiguousarray(raw), raw_dtype=gguf.GGMLQuantizationType[kind] if kind != "F32" else None)
        return torch.from_numpy(values)

    def close(self):
        w = self.writer
        w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def side_by_side(rows):
    """llama.cpp's order of a rotated head of Llama's: the two elements of a rotation side by side."""
    heads = rows.shape[0] // (HIDDEN // HEADS)
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).transpose(1, 2).reshape(rows.shape)


def half_split(rows):
    heads = rows.shape[0] // (HIDDEN // HEADS)
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).transpose(1, 2).reshape(rows.shape)


def write_layer(file, layer, n, up_kind, down_kind, *, router, rotated=False, post_norm="ffn_norm", gpt_oss=False):
    state = dict(layer.named_parameters())

    def one(name, own, kind="F32", moved=None, back=None):
        value = state[own].data
        read = file.put(f"blk.{n}.{name}", kind, moved(value) if moved else value)
        state[own].data = back(read) if back else read

    one("attn_norm.weight", "input_layernorm.weight"), one(f"{post_norm}.weight", "post_attention_layernorm.weight")
    moves = dict(moved=side_by_side, back=half_split) if rotated else {}
    for part in "qkv":
        one(f"attn_{part}.weight", f"self_attn.{part}_proj.weight", "Q8_0", **(moves if part != "v" else {}))
        if gpt_oss:
            one(f"attn_{part}.bias", f"self_attn.{part}_proj.bias")
    one("attn_output.weight", "self_attn.o_proj.weight", "Q8_0")
    one("ffn_gate_inp.weight", f"mlp.{router}.weight")
    if gpt_oss:
        one("attn_output.bias", "self_attn.o_proj.bias"), one("attn_sinks.weight", "self_attn.sinks"), one("ffn_gate_inp.bias", f"mlp.{router}.bias")
    if "self_attn.q_norm.weight" in state:
        one("attn_q_norm.weight", "self_attn.q_norm.weight"), one("attn_k_norm.weight", "self_attn.k_norm.weight")
    write_experts(file, n, state, up_kind, down_kind, gpt_oss)


def write_experts(file, n, state, up_kind, down_kind, gpt_oss):
    both, down = state["mlp.experts.gate_up_proj"], state["mlp.experts.down_proj"]
    rows = both.data.transpose(1, 2) if gpt_oss else both.data  # [experts, rows, columns]
    parts = dict(gate=rows[:, ::2], up=rows[:, 1::2]) if gpt_oss else dict(gate=rows[:, :INNER], up=rows[:, INNER:])
    read = {part: file.put(f"blk.{n}.ffn_{part}_exps.weight", up_kind, value.contiguous()) for part, value in parts.items()}
    pair = read["gate"], read["up"]
    both.data = torch.stack(pair, 2).flatten(1, 2).transpose(1, 2).contiguous() if gpt_oss else torch.cat(pair, 1)
    rows = down.data.transpose(1, 2).contiguous() if gpt_oss else down.data
    rows = file.put(f"blk.{n}.ffn_down_exps.weight", down_kind, rows)
    down.data = rows.transpose(1, 2).contiguous() if gpt_oss else rows
    if gpt_oss:
        bias = state["mlp.experts.gate_up_proj_bias"].data
        file.put(f"blk.{n}.ffn_gate_exps.bias", "F32", bias[:, ::2].contiguous()), file.put(f"blk.{n}.ffn_up_exps.bias", "F32", bias[:, 1::2].contiguous())
        file.put(f"blk.{n}.ffn_down_exps.bias", "F32", state["mlp.experts.down_proj_bias"].data)


def write(folder, arch, model, keys, up_kind, down_kind, **layers):
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        spread = 0.2 if parameter.dim() == 1 else 1.0 if "embed" in name else HIDDEN**-0.5
        parameter.data = torch.randn(parameter.shape) * spread + (1.0 if "norm" in name else 0.0)
    file = File(folder, arch, INNER)
    keys(file.writer)
    inner = model.model
    inner.embed_tokens.weight.data = file.put("token_embd.weight", "Q8_0", inner.embed_tokens.weight)
    inner.norm.weight.data = file.put("output_norm.weight", "F32", inner.norm.weight)
    model.lm_head.weight.data = file.put("output.weight", "Q8_0", model.lm_head.weight)
    for n, layer in enumerate(inner.layers):
        write_layer(file, layer, n, up_kind, down_kind, **layers)
    file.close()
    ids = torch.randint(3, VOCAB, (2, 19))
    with torch.no_grad():
        save_file({"input_ids": ids, "logits": model(ids).logits.contiguous()}, folder / "expected.safetensors")


def qwen3_moe():
    config = transformers.Qwen3MoeConfig(**COMMON, num_experts=EXPERTS, moe_intermediate_size=INNER, intermediate_size=INNER, head_dim=64,
                                         norm_topk_prob=True, rope_theta=1e6)  # fmt: skip
    return transformers.Qwen3MoeForCausalLM(config).eval()


def qwen3_keys(w):
    w.add_expert_feed_forward_length(INNER), w.add_key_length(64), w.add_value_length(64), w.add_rope_freq_base(1e6)


def mixtral():
    config = transformers.MixtralConfig(**COMMON, num_local_experts=EXPERTS, intermediate_size=INNER, rope_theta=1e6, sliding_window=None)
    return transformers.MixtralForCausalLM(config).eval()


def mixtral_keys(w):
    w.add_rope_dimension_count(HIDDEN // HEADS), w.add_rope_freq_base(1e6)


def gpt_oss():
    config = transformers.GptOssConfig(**COMMON, num_local_experts=EXPERTS, intermediate_size=INNER, head_dim=64, sliding_window=8,
                                       rope_parameters={"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                                        "original_max_position_embeddings": 16, "rope_theta": 150000.0})  # fmt: skip
    config._attn_implementation = "eager"
    return transformers.GptOssForCausalLM(config).eval()


def gpt_oss_keys(w):
    w.add_expert_feed_forward_length(INNER), w.add_key_length(64), w.add_value_length(64), w.add_rope_freq_base(150000.0)
    w.add_sliding_window(8), w.add_rope_scaling_type(gguf.RopeScalingType.YARN), w.add_rope_scaling_factor(4.0), w.add_rope_scaling_orig_ctx_len(16)


def main():
    transformers.logging.set_verbosity_error()
    print("seed", seed)
    out = Path(sys.argv[1])
    for kind in TYPES:
        write(out / f"qwen3moe_{kind.lower()}", "qwen3moe", qwen3_moe(), qwen3_keys, kind, kind, router="gate")
    write(out / "qwen3moe_q4_k_m", "qwen3moe", qwen3_moe(), qwen3_keys, "Q4_K", "Q6_K", router="gate")
    write(out / "qwen3moe_f32_down", "qwen3moe", qwen3_moe(), qwen3_keys, "Q5_K", "F32", router="gate")
    write(out / "mixtral_q4_k_m", "llama", mixtral(), mixtral_keys, "Q4_K", "Q5_0", router="gate", rotated=True)
    for kind in ("MXFP4", "Q8_0"):
        write(out / f"gpt_oss_{kind.lower()}", "gpt-oss", gpt_oss(), gpt_oss_keys, kind, kind, router="router", post_norm="post_attention_norm", gpt_oss=True)


if __name__ == "__main__":
    main()
