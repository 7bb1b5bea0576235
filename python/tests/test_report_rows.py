"""hotswap.report and `hotswap kernelize` of the C++ host list the same layers for the same model; and what is stock has a reason."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tiny import model
from transformers import AutoModelForCausalLM, FalconMambaConfig, JambaConfig, Mamba2Config, MambaConfig

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
FAMILIES = """llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi3 mixtral qwen3_moe qwen2_moe olmoe gpt_oss olmo2 olmo3 granite
smollm3 deepseek_v2 deepseek_v3 llama4_text""".split()
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
# The models themselves differ: C++ splits Phi-3's packed projections when it loads them, since its kernels for whole layers
# take them apart. (only in C++, only in Python); indices as *
PHI3 = [("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"), ("self_attn.qkv_proj", "mlp.gate_up_proj")]
DIFFERENT = {
    "phi3": [{(f"model.layers.*.{name}", "Linear") for name in names} for names in PHI3],
}


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
