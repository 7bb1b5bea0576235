"""hotswap.report and `hotswap kernelize` of the C++ host list the same layers for the same model; and what is stock has a reason."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tiny import BASE, TOKENS, model
from transformers import AutoConfig, AutoModelForCausalLM, FalconMambaConfig, JambaConfig, Mamba2Config, MambaConfig

import hotswap

PROGRAM = Path(os.environ["HOTSWAP_PACKAGES"]).parent / "bin/hotswap"
ONE = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=4, intermediate_size=64, time_step_rank=3)
OTHERS = {
    "mamba": lambda: MambaConfig(**ONE),
    "falcon_mamba": lambda: FalconMambaConfig(**ONE),
    "mamba2": lambda: Mamba2Config(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=4, num_heads=4, head_dim=16, n_groups=1, chunk_size=8
    ),
    "jamba": lambda: JambaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=4, mamba_d_state=4,
        mamba_dt_rank=3, use_mamba_kernels=False, pad_token_id=0,
    ),
}  # fmt: skip
PLAIN = {key: value for key, value in BASE.items() if key not in ("num_key_value_heads", "intermediate_size")}
MIXTURE = dict(num_local_experts=4, num_experts_per_tok=2)
ROUTED = dict(head_dim=8, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16,
              first_k_dense_replace=1, n_group=1, topk_group=1)  # fmt: skip
SLIDING = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=8)
MIXER = dict(mamba_n_heads=4, mamba_d_state=4, mamba_chunk_size=8)
NEMOTRON = dict(mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=4, n_groups=2, chunk_size=8, n_routed_experts=4, moe_intermediate_size=16,
                moe_shared_expert_intermediate_size=16, layers_block_type=["linear_attention", "moe", "full_attention", "mlp"])  # fmt: skip
GPT2 = dict(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, **TOKENS)
CONFIGS = {
    "cohere": BASE, "cohere2": BASE, "ernie4_5": {**BASE, "head_dim": 8}, "exaone4": {**BASE, **SLIDING},
    "falcon": {**PLAIN, "ffn_hidden_size": 48, "bias": True}, "glm": {**BASE, "head_dim": 8}, "glm4": {**BASE, "head_dim": 8},
    "glm4_moe": {**BASE, **ROUTED}, "gpt2": GPT2, "gpt_neox": {**PLAIN, "intermediate_size": 48},
    "bamba": {**BASE, **MIXER, "attn_layer_indices": [1]}, "falcon_h1": {**BASE, **MIXER, "mamba_d_ssm": 64, "mamba_rms_norm": True},
    "granitemoehybrid": {**BASE, **MIXER, **MIXTURE, "shared_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"],
                         "position_embedding_type": "rope"},
    "nemotron_h": {**BASE, **NEMOTRON, "head_dim": 8}, "lfm2": {**BASE, "layer_types": ["conv", "full_attention"]},
    "granitemoe": {**BASE, **MIXTURE}, "phimoe": {**BASE, **MIXTURE}, "olmo": BASE, "phi": BASE, "stablelm": BASE, "starcoder2": BASE,
}  # fmt: skip
OTHERS |= {
    name: lambda name=name, keys=keys: AutoConfig.for_model(name, **keys) for name, keys in CONFIGS.items()
}
FAMILIES = """llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi3 mixtral qwen3_moe qwen2_moe olmoe gpt_oss olmo2 olmo3 granite
smollm3 deepseek_v2 deepseek_v3 llama4_text qwen3_next qwen3_5_text qwen3_5_moe_text""".split()
# other layers than a family's usual ones
VARIANTS = {
    "llama with biases and a tied head": ("llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "llama of gelu": ("llama", dict(hidden_act="gelu_pytorch_tanh")),
    "qwen2 with windows": ("qwen2", dict(use_sliding_window=True, sliding_window=8, max_window_layers=1)),
    "qwen2_moe, one layer dense": ("qwen2_moe", dict(mlp_only_layers=[0])),
    "qwen3_moe, every layer sparse": ("qwen3_moe", dict(decoder_sparse_step=1)),
    "deepseek_v2": ("deepseek_v2", dict(first_k_dense_replace=2)),  # the C++ host has its dense layers only
    "deepseek_v2 without q_lora": ("deepseek_v2", dict(first_k_dense_replace=2, q_lora_rank=None)),
    "deepseek_v3, interleaved": ("deepseek_v3", dict(rope_interleave=True, q_lora_rank=None)),
    "deepseek_v3, every layer dense": ("deepseek_v3", dict(first_k_dense_replace=2)),
    "llama4_text, every layer of experts": ("llama4_text", dict(interleave_moe_layer_step=1, no_rope_layers=[1, 1])),
    "gemma2, every layer whole": ("gemma2", dict(layer_types=["full_attention"] * 2)),
    "smollm3, rotated everywhere": ("smollm3", dict(no_rope_layers=[1, 1])),
    "phi3, the whole head rotated": ("phi3", dict(partial_rotary_factor=1.0)),
}  # fmt: skip
# The models themselves differ: C++ splits packed projections when it loads them, since its kernels for whole layers take
# them apart; Python's classes of a family's own (Conv1D, FalconLinear, GPT-2's loss) match no layer; a name of a norm or an
# activation is that of the class. (only in C++, only in Python); indices as *
def linears(layer: str, *names: str) -> set:
    return {(f"{layer}.{name}", "Linear") for name in names}


SPLIT = ("q_proj", "k_proj", "v_proj")
NEW_GELU = [{("model.layers.*.mlp.activation_fn", "NewGELU")}, {("model.layers.*.mlp.activation_fn", "GeluTanh")}]
GATES = [linears("model.layers.*.mlp", "gate_proj", "up_proj"), linears("model.layers.*.mlp", "gate_up_proj")]
COHERE = [{("model.layers.*.input_layernorm", "LayerNorm"), ("model.norm", "LayerNorm")},
          {(name, norm) for name in ("model.layers.*.input_layernorm", "model.norm") for norm in ("RMSNorm", "AddRMSNorm")}]  # fmt: skip
OLMO = {(name, "LayerNorm") for name in ("model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm", "model.norm")}
LAYER = {("model.layers.*", "DecoderLayer")}
SHARED = "model.layers.*.shared_mlp"
FALCON = linears("transformer.h.*.self_attention", *SPLIT, "dense") | linears("transformer.h.*.mlp", "dense_*h_to_h", "dense_h_to_*h")
OF_GPT2 = (linears("transformer.h.*.attn", *SPLIT, "c_proj") | linears("transformer.h.*.mlp", "c_fc", "c_proj")
           | {("", "ForCausalLMLoss"), ("", "LinearCrossEntropy"), ("transformer.h.*.mlp.act", "NewGELU")})  # fmt: skip
# Of LFM2 Python's matchers know no block whose norms have these names, and no activation is a module there.
LFM2 = {(f"model.{name}", "AddRMSNorm") for name in ("embedding_norm", "layers.*.ffn_norm", "layers.*.operator_norm")} | {
    ("model.layers.*.feed_forward.act_fn", "SiLU")}  # fmt: skip
CONV = ("causal_conv1d_fn", "causal_conv1d_update")
DIFFERENT = {
    "lfm2": [LFM2 | {("model.layers.*.conv.conv", op) for op in CONV}, {("model.layers.*.conv", op) for op in CONV}],
    "phi3": [linears("model.layers.*", *(f"self_attn.{name}" for name in SPLIT), "mlp.gate_proj", "mlp.up_proj"),
             linears("model.layers.*", "self_attn.qkv_proj", "mlp.gate_up_proj")],
    "cohere": COHERE, "cohere2": COHERE, "glm": GATES, "glm4": GATES, "phi": NEW_GELU,
    "falcon": [FALCON, set()], "gpt2": [OF_GPT2, {("transformer.h.*.mlp.act", "GeluTanh")}],
    "gpt_neox": [linears("gpt_neox.layers.*.attention", *SPLIT) | {("embed_out", "Linear")},
                 {("gpt_neox.layers.*.attention.query_key_value", "Linear"), ("lm_head", "Linear")}],
    "olmo": [OLMO, LAYER], "stablelm": [set(), LAYER],
    "granitemoehybrid": [linears(SHARED, "gate_proj", "up_proj") | {(SHARED, "SwiGLUMLP")}, linears(SHARED, "input_linear")],
}  # fmt: skip


def by_layer(rows) -> set:
    return {(re.sub(r"\d+", "*", name), layer) for name, layer in rows}


def of_cpp(folder: Path) -> set:
    done = subprocess.run([PROGRAM, "kernelize", "--model", folder, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["layers"]
    assert all(row["reason"] for row in rows if row["package"] is None)
    return {(row["name"], row["layer"]) for row in rows}


def of_python(m) -> set:
    rows = hotswap.report(hotswap.kernelize(m)).rows
    assert all(row.why for row in rows if row.package is None)
    return {(row.name, row.layer) for row in rows}


def made(name):
    """(family, model)"""
    if name in OTHERS:
        return name, AutoModelForCausalLM.from_config(OTHERS[name]())
    family, changes = VARIANTS.get(name, (name, {}))
    return family, model(family, **changes)


@pytest.fixture
def program():
    if not PROGRAM.exists():
        pytest.skip(f"no {PROGRAM}: only the packages are built here")


def test_every_family_is_here(program, tmp_path):
    """By the error of the C++ host for a model that it does not know."""
    (tmp_path / "config.json").write_text('{"model_type": "none of them"}')
    done = subprocess.run([PROGRAM, "kernelize", "--model", tmp_path], capture_output=True, text=True)
    known = re.search("a model_type that is implemented: ([^;]*);", done.stderr)
    assert known, done.stderr
    assert set(known[1].split(", ")) == {*FAMILIES, *OTHERS}


@pytest.mark.parametrize("name", sorted({*FAMILIES, *OTHERS, *VARIANTS}))
def test_the_same_layers(program, name, tmp_path):
    family, m = made(name)
    m.save_pretrained(tmp_path)
    cpp, python = of_cpp(tmp_path), of_python(m)
    missing, more = DIFFERENT.get(family, (set(), set()))
    assert by_layer(cpp - python) <= missing and by_layer(python - cpp) <= more


def test_strict_is_no_error_where_only_choices_are_stock():
    for family in ("llama", "gemma2", "mixtral", "phi3"):
        hotswap.kernelize(model(family), strict=True)
