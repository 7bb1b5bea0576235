"""axolotl with our plugin, one line of its YAML: the same losses as without, on the CPU; all weights, and peft's adapters.

With the axolotl that is installed, or that of the Python that HOTSWAP_TEST_AXOLOTL_PYTHON names, an environment of its own: axolotl pins
most of what it needs.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import model

HERE = Path(__file__).parent
ELSEWHERE = os.environ.get("HOTSWAP_TEST_AXOLOTL_PYTHON")
if ELSEWHERE is None and importlib.util.find_spec("axolotl") is None:
    pytest.skip("axolotl: pip install axolotl, or HOTSWAP_TEST_AXOLOTL_PYTHON=a Python that has it", allow_module_level=True)
WORDS = "the a cat dog sees hears likes big small red old one two and or not".split()
LINE = {"plugins": ["hotswap.axolotl.HotswapPlugin"]}
LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "lora_target_modules": ["q_proj", "gate_proj", "down_proj"]}
OFF = {f"lora_{part}_kernel": False for part in ("mlp", "qkv", "o", "embedding")}  # Triton's, which a CPU does not run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = tmp_path_factory.mktemp("axolotl")
    vocab = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = dict(pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(made / "model")
    model().save_pretrained(made / "model")
    lines = [{"text": " ".join(WORDS[(i + k * (1 + i % 3)) % len(WORDS)] for k in range(20))} for i in range(12)]
    (made / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return made


def run(folder, name, **more):
    """(its losses and calls, or None where it failed; the log)"""
    given = dict(
        base_model=str(folder / "model"), tokenizer_type="AutoTokenizer", output_dir=str(folder / name),
        datasets=[dict(path=str(folder / "rows.jsonl"), ds_type="json", type="completion")], dataset_prepared_path=str(folder / f"data-{name}"),
        sequence_len=32, micro_batch_size=2, gradient_accumulation_steps=1, max_steps=4, learning_rate=1e-2, optimizer="adamw_torch",
        lr_scheduler="constant", logging_steps=1, save_strategy="no", seed=3, bf16=False, fp16=False, tf32=False, val_set_size=0,
        attn_implementation="sdpa", dataset_num_proc=1, special_tokens=dict(pad_token="<pad>"),
    ) | more  # fmt: skip
    file, out = folder / f"{name}.yml", folder / f"{name}.json"
    file.write_text(json.dumps(given))  # JSON is YAML
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1"}
    command = [ELSEWHERE or sys.executable, HERE / "axolotl_run.py", file, out]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    log = done.stdout + done.stderr
    return (json.loads(out.read_text()), log) if done.returncode == 0 else (None, log)


@pytest.mark.parametrize("adapters", [False, True])
def test_same_losses(folder, adapters):
    more, name = (LORA, "lora") if adapters else ({}, "whole")
    stock, log = run(folder, f"{name}-stock", **more, **(OFF if adapters else {}))
    assert stock, log[-4000:]
    swapped, log = run(folder, f"{name}-swapped", **more, **LINE)
    assert swapped, log[-4000:]
    print(f"axolotl, {name}: losses {stock['loss']} -> {swapped['loss']}")
    assert len(stock["loss"]) == 4 and stock["calls"] == {}
    assert swapped["loss"] == pytest.approx(stock["loss"], rel=1e-5)  # float32: sums in another order
    assert swapped["grad_norm"] == pytest.approx(stock["grad_norm"], rel=1e-4)
    # five norms with adapters, too: axolotl gives the embeddings' output a gradient
    assert swapped["calls"]["mlp.swiglu"] == 2 * 4 and swapped["calls"]["norm.rms_norm_bwd"] == 5 * 4, swapped
    assert "SwiGLUMLP            x2    mlp v1" in log  # the report


def test_kernels_of_axolotls_own_beside_it_are_an_error(folder):
    done, log = run(folder, "both", **LORA, **LINE, lora_mlp_kernel=True)
    assert done is None and "expected one source of kernels for adapters; got lora_mlp_kernel: true" in log


def test_what_kernelize_takes(folder):
    done, log = run(folder, "option", **LINE, hotswap=dict(mpl=False))
    assert done is None and "expected options of" in log and "got mpl; leave it out" in log
    done, log = run(folder, "options", **LINE, hotswap=dict(mlp=False, strict=True, kernel_config=dict(rotary_pos_emb="")))
    assert done, log[-4000:]
    assert "mlp.swiglu" not in done["calls"] and "rotary.rotary" not in done["calls"] and done["calls"]["norm.rms_norm_fwd"] == 5 * 4
