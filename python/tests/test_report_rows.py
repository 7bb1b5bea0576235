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
smollm3 deepseek_v3 llama4_text""".split()
# Where the two hosts' modules differ, and so their rows: (only in C++, only in Python), numbers as *
ACT = ("model.layers.*.mixer.act", "SiLU")  # a module there, in C++ a part of the mixer
PHI3 = [("self_attn.q_proj", "Linear"), ("self_attn.k_proj", "Linear"), ("self_attn.v_proj", "Linear"), ("mlp.gate_proj", "Linear"),
        ("mlp.up_proj", "Linear"), ("mlp.act_fn", "SiLU")]  # fmt: skip
DIFFERENT = {
    "gpt_oss": ({("model.layers.*.mlp.experts", "MegaBlocksMoeMLP")}, {("model.layers.*.mlp.experts", "Experts")}),
    "mamba": (set(), {ACT}),
    "mamba2": (set(), {ACT}),
    "falcon_mamba": (set(), {ACT, *((f"model.layers.*.mixer.{n}_layernorm", "RMSNorm") for n in ("b", "c", "dt"))}),
    "jamba": (  # it has no rotary embedding; its last norm is called so in transformers
        {("model.layers.*.self_attn", "rotary_pos_emb"), ("model.norm", "RMSNorm"), ("model.norm", "AddRMSNorm")},
        {("model.layers.*.mamba.act", "SiLU"), ("model.final_layernorm", "RMSNorm"), ("model.final_layernorm", "AddRMSNorm")},
    ),
    "phi3": (  # packed there
        {(f"model.layers.*.{name}", layer) for name, layer in PHI3},
        {(f"model.layers.*.{name}", layer) for name, layer in (
            ("self_attn.qkv_proj", "Linear"), ("mlp.gate_up_proj", "Linear"), ("mlp.activation_fn", "SiLU"))},
    ),
    "llama4_text": (
        {("model.layers.*.feed_forward.act_fn", "SiLU"), ("model.layers.*.feed_forward.shared_expert.act_fn", "SiLU"),
         ("model.layers.*.feed_forward.experts", "Llama4TextMoe")},
        {("model.layers.*.feed_forward.activation_fn", "SiLU"), ("model.layers.*.feed_forward.shared_expert.activation_fn", "SiLU"),
         ("model.layers.*.feed_forward", "Llama4TextMoe"), ("model.layers.*.self_attn.qk_norm", "RMSNorm")},
    ),
}  # fmt: skip
FUNCTIONS = {"rotary_pos_emb": ".rotary_fn", "ForCausalLMLoss": "loss_function", "LinearCrossEntropy": "loss_function"}


def by_layer(rows) -> set:
    return {(re.sub(r"\d+", "*", name.replace("conv1d", "conv")), layer) for name, layer in rows}


def of_cpp(folder: Path) -> set:
    done = subprocess.run([PROGRAM, "kernelize", "--model", folder, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["layers"]
    assert all(row["reason"] for row in rows if row["package"] is None)
    return {(row["name"].removesuffix(FUNCTIONS.get(row["layer"], "-")), row["layer"]) for row in rows}


def of_python(m) -> set:
    rows = hotswap.report(hotswap.kernelize(m)).rows
    assert all(row.why for row in rows if row.package is None)
    return {(row.name.replace("backbone.", "model.").replace("norm_f", "norm"), row.layer) for row in rows}


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_the_same_layers(family, tmp_path):
    if not PROGRAM.exists():
        pytest.skip(f"no {PROGRAM}: only the packages are built here")
    m = AutoModelForCausalLM.from_config(OTHERS[family]()) if family in OTHERS else model(family)
    m.save_pretrained(tmp_path)
    cpp, python = of_cpp(tmp_path), of_python(m)
    missing, more = DIFFERENT.get(family, (set(), set()))
    assert by_layer(cpp - python) <= missing and by_layer(python - cpp) <= more


def test_strict_is_no_error_where_only_choices_are_stock():
    for family in ("llama", "gemma2", "mixtral", "phi3"):
        hotswap.kernelize(model(family), strict=True)
