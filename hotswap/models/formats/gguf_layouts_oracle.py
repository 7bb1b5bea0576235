"""Writes tiny models as llama.cpp's converter does, by its own package and its own table of tensor names, and what transformers'
models of the same weights compute.

    python hotswap/models/formats/gguf_layouts_oracle.py OUT

OUT/NAME/model.gguf            NAME is the family, and its variant where there are several
OUT/NAME/expected.safetensors  input_ids [2, time] and logits [2, time, vocab], float32
OUT/NAME/hf                    the model as transformers saves it
"""

import os
import secrets
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that spin make each other slow where others compute too

import gguf
import torch
import transformers
from safetensors.torch import load_file, save_file

seed = secrets.randbits(32)
HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, VOCAB, CONTEXT = 32, 48, 4, 2, 3, 56, 64
HEAD = HIDDEN // HEADS
SIZES = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, max_position_embeddings=CONTEXT,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)  # fmt: skip
GROUPED = dict(SIZES, num_key_value_heads=KV_HEADS, intermediate_size=INNER)


class Layout:
    """How a family's tensors are stored: each of a checkpoint, under its name there, as some of (name, tensor) of the file."""

    def __init__(self, arch, config):
        layers = len(getattr(config, "layers_block_type", None) or []) or config.num_hidden_layers
        self.arch, self.config = arch, config
        self.names = gguf.get_tensor_name_map(next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), layers)
        self.state = {}

    def name_of(self, name):
        found = self.names.get_name(name.replace("e_score_correction_bias", "e_score_correction.bias"), try_suffixes=(".weight", ".bias"))
        assert found, f"llama.cpp has no name for {name} in {self.arch}"
        return found

    def stored(self, name, tensor):
        yield self.name_of(name), tensor

    def all(self):
        for name, tensor in self.state.items():
            yield from self.stored(name, tensor)


def side_by_side(rows, heads):
    """llama.cpp's order of a rotated head of Llama's: the two elements of a rotation side by side."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).transpose(1, 2).reshape(rows.shape)


class Transposed(Layout):
    """GPT-2's matrices."""

    def stored(self, name, tensor):
        matrix = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
        yield from super().stored(name, tensor.t() if matrix else tensor)


class PackedHeads(Layout):
    """Queries, keys and values of each group, one kind after the other: GPT-NeoX, Falcon."""

    def stored(self, name, tensor):
        if "query_key_value" in name:
            groups = (tensor.shape[0] // HEAD - HEADS) // 2
            parts = tensor.reshape(groups, HEADS // groups + 2, HEAD, -1)
            kinds = parts[:, :-2], parts[:, -2:-1], parts[:, -1:]
            tensor = torch.cat([kind.reshape(-1, parts.shape[-1]) for kind in kinds]).reshape(tensor.shape)
        yield from super().stored(name, tensor)


class Rotated(Layout):
    """Rows of queries and keys that rotate as a pair are next to each other."""

    def stored(self, name, tensor):
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            tensor = side_by_side(tensor, HEADS)
        if name.endswith(("k_proj.weight", "k_proj.bias")):
            tensor = side_by_side(tensor, KV_HEADS)
        yield from super().stored(name, tensor)


class StackedNorms(Layout):
    """StableLM's norm of each head."""

    def all(self):
        stacks, rest = {}, {}
        for name, tensor in self.state.items():
            stem, dot, number = name.partition(".norms.")
            if dot:
                stacks.setdefault(stem + ".weight", {})[int(number.split(".")[0])] = tensor
            else:
                rest[name] = tensor
        self.state = rest | {name: torch.stack([of_each[i] for i in range(len(of_each))]) for name, of_each in stacks.items()}
        yield from super().all()


class Experts(Layout):
    """Experts of a layer as one tensor for each projection."""

    block = "mlp"

    def all(self):
        counted, rest = {}, {}
        for name, tensor in self.state.items():
            before, dot, after = name.partition(f".{self.block}.experts.")
            if not dot or not after[0].isdigit():
                rest[name] = tensor
                continue
            number, part = after.split(".", 1)
            counted.setdefault(f"model.layers.{before.split('.')[2]}.mlp.experts.{part}", {})[int(number)] = tensor
        for name, of_each in counted.items():
            rest[name] = torch.stack([of_each[i] for i in range(len(of_each))])
        self.state = rest
        yield from super().all()


class Latent(Experts):
    """DeepSeek's attention, whose keys and values are made by two tensors of all heads."""

    def stored(self, name, tensor):
        if not name.endswith("kv_b_proj.weight"):
            return (yield from super().stored(name, tensor))
        config = self.config
        keys, values = tensor.reshape(HEADS, -1, config.kv_lora_rank).split([config.qk_nope_head_dim, config.v_head_dim], 1)
        yield from super().stored(name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2))
        yield from super().stored(name.replace("kv_b_proj", "v_b_proj"), values)


class LongRope(Layout):
    """Factors of each pair of a head's rotated part."""

    def all(self):
        for kind in ("long", "short"):
            yield f"rope_factors_{kind}.weight", torch.tensor(self.config.rope_parameters[f"{kind}_factor"])
        yield from super().all()


class Recurrent(Layout):
    """Mamba-2's mixers."""

    def stored(self, name, tensor):
        if name.endswith("dt_bias"):
            name = name.removesuffix("dt_bias") + "dt_proj.bias" if ".mamba." in name else name.removesuffix("dt_bias") + "dt.bias"
        elif name.endswith("A_log"):
            tensor = -torch.exp(tensor).unsqueeze(-1)
        elif name.endswith(".D"):
            tensor = tensor.unsqueeze(-1)
        elif name.endswith("conv1d.weight"):
            tensor = tensor.squeeze(1)
        elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            tensor = tensor.reshape(groups_of(self.config), -1)
        yield from super().stored(name, tensor)


def groups_of(config):
    return config.mamba_n_groups if hasattr(config, "mamba_n_groups") else config.n_groups


class Granite(Rotated):
    """Gate and up of experts, and of the part for all tokens, apart."""

    def stored(self, name, tensor):
        layer = (name + "..").split(".")[2]
        sparse = getattr(self.config, "num_local_experts", 0) > 0
        if name.endswith("block_sparse_moe.input_linear.weight"):
            gate, up = tensor.chunk(2, -2)
            yield f"blk.{layer}.ffn_gate_exps.weight", gate
            yield f"blk.{layer}.ffn_up_exps.weight", up
        elif name.endswith("shared_mlp.input_linear.weight"):
            gate, up = tensor.chunk(2, -2)
            yield f"blk.{layer}.ffn_gate{'_shexp' if sparse else ''}.weight", gate
            yield f"blk.{layer}.ffn_up{'_shexp' if sparse else ''}.weight", up
        elif name.endswith("shared_mlp.output_linear.weight"):
            yield f"blk.{layer}.ffn_down{'_shexp' if sparse else ''}.weight", tensor
        else:
            yield from super().stored(name, tensor)


class GraniteHybrid(Granite, Recurrent):
    pass


class Bamba(Rotated, Recurrent):
    pass


class FalconH1(Recurrent):
    """The multipliers are in the weights."""

    def stored(self, name, tensor):
        c = self.config
        for part, by in (("down_proj", c.mlp_multipliers[1]), ("gate_proj", c.mlp_multipliers[0]),
                         ("k_proj", c.key_multiplier * c.attention_in_multiplier), ("q_proj", c.attention_in_multiplier),
                         ("v_proj", c.attention_in_multiplier), ("o_proj", c.attention_out_multiplier), ("out_proj", c.ssm_out_multiplier),
                         ("in_proj", c.ssm_in_multiplier), ("lm_head", c.lm_head_multiplier), ("embed_tokens", c.embedding_multiplier)):  # fmt: skip
            if f".{part}." in f".{name}":
                tensor = tensor * by
        if name.endswith("in_proj.weight"):
            shared, gates = c.mamba_n_groups * c.mamba_d_state, c.mamba_d_ssm
            widths = torch.tensor([gates, gates, shared, shared, c.mamba_n_heads])
            tensor = tensor * torch.tensor(c.ssm_multipliers).repeat_interleave(widths)[:, None]
        yield from super().stored(name, tensor)


class Nemotron(Rotated, Recurrent):
    """Nothing is rotated; the converter is Granite's."""


class NemotronExperts(Experts, Nemotron):
    block = "mixer"


# ---- keys of a file: of all families, then of each


def common(w, config, kv_heads=KV_HEADS, inner=INNER):
    w.add_block_count(config.num_hidden_layers), w.add_context_length(CONTEXT), w.add_embedding_length(HIDDEN), w.add_head_count(HEADS), w.add_head_count_kv(kv_heads)
    w.add_vocab_size(VOCAB), w.add_feed_forward_length(inner)


def layer_norms(eps, **by_layer):
    return lambda w, config: (common(w, config, **by_layer), w.add_layer_norm_eps(eps))


def rms_norms(eps, **by_layer):
    return lambda w, config: (common(w, config, **by_layer), w.add_layer_norm_rms_eps(eps))


def also(first, *others):
    return lambda w, config: [one(w, config) for one in (first, *others)]


def head_dim(width):
    return lambda w, config: (w.add_key_length(width), w.add_value_length(width))


def rotated(dims, base=None):
    return lambda w, config: (w.add_rope_dimension_count(dims), base and w.add_rope_freq_base(base))


def mixture(w, c):
    w.add_expert_count(c.n_routed_experts), w.add_expert_used_count(c.num_experts_per_tok), w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_count(c.n_shared_experts), w.add_expert_weights_scale(c.routed_scaling_factor), w.add_expert_weights_norm(c.norm_topk_prob)
    w.add_expert_group_count(c.n_group), w.add_expert_group_used_count(c.topk_group)
    if hasattr(c, "first_k_dense_replace"):
        w.add_leading_dense_block_count(c.first_k_dense_replace)


def beyond(w, config):
    """A layer after the last one, which predicts further tokens."""
    layers = config.num_hidden_layers
    w.kv_data[0].pop(f"{w.arch}.block_count")
    w.add_block_count(layers + 1), w.add_nextn_predict_layers(1)
    w.add_tensor(f"blk.{layers}.nextn.enorm.weight", torch.ones(HIDDEN).numpy())


def sigmoid(w, config):
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def latent(w, c):
    w.add_kv_lora_rank(c.kv_lora_rank), w.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim), w.add_value_length(c.kv_lora_rank)
    w.add_key_length_mla(c.qk_nope_head_dim + c.qk_rope_head_dim), w.add_value_length_mla(c.v_head_dim), w.add_rope_dimension_count(c.qk_rope_head_dim)
    if c.q_lora_rank:
        w.add_q_lora_rank(c.q_lora_rank)


def yarn(w, config):
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN), w.add_rope_scaling_factor(4.0), w.add_rope_scaling_orig_ctx_len(16)
    w.add_rope_scaling_yarn_log_mul(0.1 * 0.707), w.add_rope_scaling_yarn_beta_fast(32.0), w.add_rope_scaling_yarn_beta_slow(1.0)


def windows(w, c):
    w.add_sliding_window(c.sliding_window), w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c.layer_types])


def granite(w, c):
    w.add_embedding_scale(c.embedding_multiplier), w.add_attention_scale(c.attention_multiplier), w.add_residual_scale(c.residual_multiplier)
    w.add_logit_scale(c.logits_scaling), w.add_rope_dimension_count(HEAD)


def granite_experts(w, c):
    w.add_expert_count(c.num_local_experts), w.add_expert_used_count(c.num_experts_per_tok)


def recurrent(inner, heads, state, groups):
    def keys(w, config):
        w.add_ssm_conv_kernel(4), w.add_ssm_inner_size(inner), w.add_ssm_state_size(state), w.add_ssm_group_count(groups), w.add_ssm_time_step_rank(heads)

    return keys


def shared(width):
    return lambda w, config: w.add_expert_shared_feed_forward_length(width)


MULTIPLIERS = dict(embedding_multiplier=3.0, attention_multiplier=0.5, residual_multiplier=0.25, logits_scaling=2.0)
NEOX = dict(SIZES, intermediate_size=INNER, layer_norm_eps=1e-5, rotary_pct=0.5, rotary_emb_base=10000)
STABLE = dict(GROUPED, layer_norm_eps=1e-5, partial_rotary_factor=0.5, rope_theta=1e4)
FALCON = dict(SIZES, layer_norm_epsilon=1e-5, bias=False, alibi=False, parallel_attn=True)
COHERE = dict(GROUPED, layer_norm_eps=1e-5, logit_scale=0.25)
MIXTURE = dict(n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16, n_group=1, topk_group=1)
LATENT = dict(GROUPED, num_key_value_heads=HEADS, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, first_k_dense_replace=1,
              rms_norm_eps=1e-6)  # fmt: skip
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.707, mscale_all_dim=0.707, beta_fast=32, beta_slow=1, rope_theta=1e4)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=12, mamba_expand=2, mamba_d_conv=4, mamba_chunk_size=8)
ONE_GROUP = dict(MAMBA, mamba_n_groups=1)  # of several transformers makes one norm before 5.24
HYBRID = ["mamba", "attention", "mamba"]
NEMOTRON = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=12, intermediate_size=INNER,
                max_position_embeddings=CONTEXT, ssm_state_size=12, mamba_num_heads=8, mamba_head_dim=8, n_groups=2, conv_kernel=4, chunk_size=8,
                layer_norm_epsilon=1e-5, use_conv_bias=True, bos_token_id=1, eos_token_id=2, pad_token_id=0)  # fmt: skip
NEMOTRON_MIXTURE = dict(MIXTURE, moe_shared_expert_intermediate_size=24, routed_scaling_factor=1.5, norm_topk_prob=True)

# name: (architecture, transformers' classes, arguments of the config, layout, keys)
CASES = {
    "gpt2": ("gpt2", "GPT2Config", "GPT2LMHeadModel", dict(vocab_size=VOCAB, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT),
             Transposed, layer_norms(1e-5, kv_heads=HEADS, inner=4 * HIDDEN)),
    "gpt_neox": ("gptneox", "GPTNeoXConfig", "GPTNeoXForCausalLM", NEOX, PackedHeads,
                 also(layer_norms(1e-5, kv_heads=HEADS), rotated(HEAD // 2), lambda w, c: w.add_parallel_residual(True))),
    "gpt_neox.sequential": ("gptneox", "GPTNeoXConfig", "GPTNeoXForCausalLM", dict(NEOX, use_parallel_residual=False), PackedHeads,
                            also(layer_norms(1e-5, kv_heads=HEADS), rotated(HEAD // 2), lambda w, c: w.add_parallel_residual(False))),
    "phi": ("phi2", "PhiConfig", "PhiForCausalLM", dict(SIZES, intermediate_size=4 * HIDDEN, layer_norm_eps=1e-5, partial_rotary_factor=0.5), Layout,
            also(layer_norms(1e-5, kv_heads=HEADS, inner=4 * HIDDEN), rotated(HEAD // 2))),
    "phi3": ("phi3", "Phi3Config", "Phi3ForCausalLM", dict(GROUPED, rms_norm_eps=1e-5, sliding_window=6, original_max_position_embeddings=CONTEXT), Layout,
             also(rms_norms(1e-5), rotated(HEAD, 1e4), lambda w, c: (w.add_sliding_window(6), w.add_rope_scaling_orig_ctx_len(CONTEXT)))),
    "phi3.longrope": ("phi3", "Phi3Config", "Phi3ForCausalLM",
                      dict(GROUPED, rms_norm_eps=1e-5, sliding_window=None, partial_rotary_factor=0.5, original_max_position_embeddings=16,
                           rope_parameters=dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.5, original_max_position_embeddings=16,
                                                short_factor=[1.0, 1.25], long_factor=[1.5, 3.0])),
                      LongRope, also(rms_norms(1e-5), rotated(HEAD // 2, 1e4), lambda w, c: (w.add_sliding_window(0), w.add_rope_scaling_orig_ctx_len(16),
                                                                                            w.add_rope_scaling_attn_factors(1.224744871)))),
    "qwen2_moe": ("qwen2moe", "Qwen2MoeConfig", "Qwen2MoeForCausalLM",
                  dict(GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24, rms_norm_eps=1e-6),
                  Experts, also(rms_norms(1e-6), shared(24), lambda w, c: (w.add_expert_count(4), w.add_expert_used_count(2), w.add_expert_feed_forward_length(16)))),
    "olmoe": ("olmoe", "OlmoeConfig", "OlmoeForCausalLM", dict(GROUPED, num_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5), Experts,
              also(rms_norms(1e-5), lambda w, c: (w.add_expert_count(4), w.add_expert_used_count(2)))),
    "starcoder2": ("starcoder2", "Starcoder2Config", "Starcoder2ForCausalLM", dict(GROUPED, norm_epsilon=1e-5, rope_theta=5e4, use_bias=True), Layout,
                   also(layer_norms(1e-5), rotated(HEAD, 5e4))),
    "cohere": ("command-r", "CohereConfig", "CohereForCausalLM", dict(COHERE, rope_theta=8e4), Layout,
               also(layer_norms(1e-5), lambda w, c: (w.add_logit_scale(0.25), w.add_rope_freq_base(8e4)))),
    "cohere.norms": ("command-r", "CohereConfig", "CohereForCausalLM", dict(COHERE, use_qk_norm=True, rope_theta=8e4), Layout,
                     also(layer_norms(1e-5), lambda w, c: (w.add_logit_scale(0.25), w.add_rope_freq_base(8e4)))),
    "cohere2": ("cohere2", "Cohere2Config", "Cohere2ForCausalLM", dict(COHERE, num_hidden_layers=5, sliding_window=4, rope_theta=5e4), Layout,
                also(layer_norms(1e-5), lambda w, c: (w.add_logit_scale(0.25), w.add_sliding_window(4)), rotated(HEAD, 5e4))),
    "olmo": ("olmo", "OlmoConfig", "OlmoForCausalLM", dict(GROUPED, clip_qkv=1.5), Rotated, also(layer_norms(1e-5), lambda w, c: w.add_clamp_kqv(1.5))),
    "stablelm": ("stablelm", "StableLmConfig", "StableLmForCausalLM", dict(STABLE, use_qkv_bias=True), StackedNorms,
                 also(layer_norms(1e-5), rotated(HEAD // 2), lambda w, c: w.add_parallel_residual(True))),
    "stablelm.parallel": ("stablelm", "StableLmConfig", "StableLmForCausalLM", dict(STABLE, use_parallel_residual=True, qk_layernorm=True), StackedNorms,
                          also(layer_norms(1e-5), rotated(HEAD // 2), lambda w, c: w.add_parallel_residual(True))),
    "falcon.7b": ("falcon", "FalconConfig", "FalconForCausalLM", dict(FALCON, multi_query=True), PackedHeads, layer_norms(1e-5, kv_heads=1, inner=4 * HIDDEN)),
    "falcon.40b": ("falcon", "FalconConfig", "FalconForCausalLM", dict(FALCON, new_decoder_architecture=True, num_kv_heads=KV_HEADS), PackedHeads,
                   layer_norms(1e-5, inner=4 * HIDDEN)),
    "falcon.11b": ("falcon", "FalconConfig", "FalconForCausalLM",
                   dict(FALCON, new_decoder_architecture=True, num_kv_heads=KV_HEADS, num_ln_in_parallel_attn=1), PackedHeads, layer_norms(1e-5, inner=4 * HIDDEN)),
    "glm": ("chatglm", "GlmConfig", "GlmForCausalLM", dict(GROUPED, head_dim=HEAD, rms_norm_eps=1e-5, partial_rotary_factor=0.5), Layout,
            also(rms_norms(1e-5), rotated(HEAD // 2, 1e4))),
    "glm4": ("glm4", "Glm4Config", "Glm4ForCausalLM", dict(GROUPED, head_dim=12, rms_norm_eps=1e-5, partial_rotary_factor=0.5, attention_bias=True), Layout,
             also(rms_norms(1e-5), head_dim(12), rotated(6, 1e4))),
    "glm4_moe": ("glm4moe", "Glm4MoeConfig", "Glm4MoeForCausalLM",
                 dict(GROUPED, **MIXTURE, head_dim=12, partial_rotary_factor=0.5, first_k_dense_replace=1, use_qk_norm=True, attention_bias=True,
                      routed_scaling_factor=2.5, norm_topk_prob=True, rms_norm_eps=1e-5),
                 Experts, also(rms_norms(1e-5), head_dim(12), rotated(6, 1e4), mixture, sigmoid, beyond)),
    "ernie4_5": ("ernie4_5", "Ernie4_5Config", "Ernie4_5ForCausalLM", dict(GROUPED, head_dim=12, rms_norm_eps=1e-5, rope_theta=5e5), Layout,
                 also(rms_norms(1e-5), head_dim(12), lambda w, c: w.add_rope_freq_base(5e5))),
    "exaone4": ("exaone4", "Exaone4Config", "Exaone4ForCausalLM", dict(GROUPED, head_dim=HEAD, rms_norm_eps=1e-5, sliding_window=None,
                                                                       layer_types=["full_attention"] * LAYERS),
                Layout, also(rms_norms(1e-5), head_dim(HEAD), lambda w, c: w.add_rope_freq_base(1e4))),
    "exaone4.windows": ("exaone4", "Exaone4Config", "Exaone4ForCausalLM",
                        dict(GROUPED, num_hidden_layers=5, head_dim=HEAD, rms_norm_eps=1e-5, sliding_window=4, sliding_window_pattern=4),
                        Layout, also(rms_norms(1e-5), head_dim(HEAD), windows)),
    "granitemoe": ("granitemoe", "GraniteMoeConfig", "GraniteMoeForCausalLM",
                   dict(GROUPED, **MULTIPLIERS, num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-6),
                   Granite, also(rms_norms(1e-6), granite, granite_experts)),
    "granite4.dense": ("granite", "GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM",
                       dict(GROUPED, **MULTIPLIERS, **ONE_GROUP, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=INNER, rms_norm_eps=1e-5,
                            layer_types=["attention"] * LAYERS, position_embedding_type="rope"),
                       Granite, also(rms_norms(1e-5, kv_heads=[KV_HEADS] * LAYERS), granite, recurrent(64, 8, 12, 1), shared(INNER))),
    "granitemoehybrid": ("granitehybrid", "GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM",
                         dict(GROUPED, **MULTIPLIERS, **ONE_GROUP, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=24, rms_norm_eps=1e-5,
                              layer_types=HYBRID, position_embedding_type="nope"),
                         GraniteHybrid, also(rms_norms(1e-5, kv_heads=[0, KV_HEADS, 0]), granite, granite_experts, recurrent(64, 8, 12, 1), shared(24),
                                             lambda w, c: w.add_rope_scaling_finetuned(False))),
    "granitemoehybrid.dense": ("granitehybrid", "GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM",
                               dict(GROUPED, **MULTIPLIERS, **ONE_GROUP, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=INNER,
                                    rms_norm_eps=1e-5, layer_types=HYBRID, position_embedding_type="nope"),
                               GraniteHybrid, also(rms_norms(1e-5, kv_heads=[0, KV_HEADS, 0]), granite, recurrent(64, 8, 12, 1), shared(INNER),
                                                   lambda w, c: w.add_rope_scaling_finetuned(False))),
    "bamba": ("granitehybrid", "BambaConfig", "BambaForCausalLM", dict(GROUPED, **ONE_GROUP, attn_layer_indices=[1], rms_norm_eps=1e-5),
              Bamba, also(rms_norms(1e-5, kv_heads=[0, KV_HEADS, 0]), rotated(HEAD // 2, 1e4), recurrent(64, 8, 12, 1),
                          lambda w, c: w.add_rope_scaling_finetuned(True))),
    "falcon_h1": ("falcon-h1", "FalconH1Config", "FalconH1ForCausalLM",
                  dict(GROUPED, **MAMBA, head_dim=12, mamba_d_ssm=64, mamba_rms_norm=True, mamba_norm_before_gate=False, rms_norm_eps=1e-5, rope_theta=1e5,
                       embedding_multiplier=3.0, lm_head_multiplier=0.5, mlp_multipliers=[0.5, 0.75], key_multiplier=0.5, attention_in_multiplier=1.5,
                       attention_out_multiplier=0.75, ssm_in_multiplier=1.25, ssm_out_multiplier=0.5, ssm_multipliers=[0.5, 1.5, 0.75, 1.25, 0.5]),
                  FalconH1, also(rms_norms(1e-5), head_dim(12), recurrent(64, 8, 12, 2), lambda w, c: w.add_rope_freq_base(1e5))),
    "nemotron_h": ("nemotron_h", "NemotronHConfig", "NemotronHForCausalLM",
                   dict(NEMOTRON, layers_block_type=["mamba", "attention", "mlp"]), Nemotron,
                   also(layer_norms(1e-5, kv_heads=[0, KV_HEADS, 0], inner=[0, 0, INNER]), head_dim(12), rotated(HEAD), recurrent(64, 8, 12, 2))),
    "nemotron_h.experts": ("nemotron_h_moe", "NemotronHConfig", "NemotronHForCausalLM",
                           dict(NEMOTRON, **NEMOTRON_MIXTURE, layers_block_type=["mamba", "attention", "moe"]), NemotronExperts,
                           also(layer_norms(1e-5, kv_heads=[0, KV_HEADS, 0], inner=[0, 0, 16]), head_dim(12), rotated(HEAD), recurrent(64, 8, 12, 2), mixture, shared(24))),
    "nemotron_h.latent": ("nemotron_h_moe", "NemotronHConfig", "NemotronHForCausalLM",
                          dict(NEMOTRON, **NEMOTRON_MIXTURE, moe_latent_size=20, layers_block_type=["mamba", "attention", "moe"]), NemotronExperts,
                          also(layer_norms(1e-5, kv_heads=[0, KV_HEADS, 0], inner=[0, 0, 16]), head_dim(12), rotated(HEAD), recurrent(64, 8, 12, 2), mixture, shared(24),
                               lambda w, c: w.add_moe_latent_size(20))),
    "deepseek_v2": ("deepseek2", "DeepseekV2Config", "DeepseekV2ForCausalLM",
                    dict(LATENT, **MIXTURE, q_lora_rank=12, rope_parameters=YARN, topk_method="greedy", routed_scaling_factor=1.5, norm_topk_prob=False),
                    Latent, also(rms_norms(1e-6, kv_heads=1), latent, mixture, yarn)),
    "deepseek_v2.lite": ("deepseek2", "DeepseekV2Config", "DeepseekV2ForCausalLM",
                         dict(LATENT, **dict(MIXTURE, n_group=4, topk_group=2), q_lora_rank=None, topk_method="group_limited_greedy", routed_scaling_factor=1.0,
                              norm_topk_prob=False),
                         Latent, also(rms_norms(1e-6, kv_heads=1), latent, mixture)),
    "deepseek_v3": ("deepseek2", "DeepseekV3Config", "DeepseekV3ForCausalLM",
                    dict(LATENT, **dict(MIXTURE, n_group=4, topk_group=2), q_lora_rank=12, routed_scaling_factor=2.5, norm_topk_prob=True),
                    Latent, also(rms_norms(1e-6, kv_heads=1), latent, mixture, sigmoid)),
}  # fmt: skip


def write(folder, arch, config_class, model_class, arguments, layout, keys):
    torch.manual_seed(seed)
    config = getattr(transformers, config_class)(**arguments)
    config._attn_implementation = "eager"
    model = getattr(transformers, model_class)(config).eval()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name.endswith(("A_log", "dt_bias")):
            continue
        spread = 0.2 if tensor.dim() == 1 else 1.0 if "embed" in name or "wte" in name else tensor.shape[-1] ** -0.5
        tensor.data = torch.randn(tensor.shape) * spread + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
    model.save_pretrained(folder / "hf")
    tensors = layout(arch, config)
    tensors.state = {name: tensor for file in (folder / "hf").glob("*.safetensors") for name, tensor in load_file(file).items()}
    writer = gguf.GGUFWriter(folder / "model.gguf", arch)
    keys(writer, config)
    for name, tensor in tensors.all():
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    ids = torch.randint(3, VOCAB, (2, 19))
    with torch.no_grad():
        save_file({"input_ids": ids, "logits": model(ids, use_cache=False).logits.contiguous()}, folder / "expected.safetensors")


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print("seed", seed)
    out = Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        write(out / name, *CASES[name])


if __name__ == "__main__":
    main()
