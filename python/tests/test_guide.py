"""docs/python.md: every Python block runs, and our kernels are called where it says so."""

import importlib.util
import re
from pathlib import Path

import blocks
import pytest
from tiny import model

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/python.md"
TEXT = DOCUMENT.read_text().split("## From the guides")[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)

BEFORE = """
import sys, torch, hotswap
from torch import nn
from kernels import Mode
from tiny import Calls
from transformers import AutoModelForCausalLM, KernelConfig, Trainer, TrainingArguments
output_dir = sys.argv[2]
device = "cuda" if torch.cuda.is_available() else "cpu"
input_ids = torch.arange(3, 15, device=device)[None]
labels = input_ids.clone()
dataset = [dict(input_ids=input_ids[0].cpu(), labels=labels[0].cpu())] * 8
with Calls() as calls:
"""
AFTER = """
    if "Block" not in globals():
        with torch.no_grad():
            model(input_ids, labels=labels)
print("CALLS " + " ".join(sorted(calls.made)))
"""
# what a block must have called, and what it must not
EXPECTED = [
    ("use_kernels=True,\n    kernel_config=hotswap.kernel_config(),", "norm.rms_norm mlp.swiglu rotary.rotary", ""),
    ("model.eval()", "norm.rms_norm norm.rms_norm_fwd norm.rms_norm_bwd mlp.swiglu_bwd_ rotary.rotary_bwd loss.cross_entropy_bwd", ""),
    ("Mode.TRAINING | Mode.TORCH_COMPILE", "norm.rms_norm mlp.swiglu rotary.rotary", ""),
    ("use_local_kernel=True", "norm.rms_norm", "mlp.swiglu rotary.rotary"),
    ("rms_norm=False", "mlp.swiglu rotary.rotary", "norm.rms_norm"),
    ("apply_liger_kernel_to_qwen3", "norm.rms_norm mlp.swiglu rotary.rotary", ""),
    ("enable_for_trainer", "mlp.swiglu_bwd_ rotary.rotary_bwd loss.cross_entropy_bwd", "norm.rms_norm_fwd"),
    ("class Block", "norm.rms_norm_fwd norm.rms_norm_bwd loss.linear_cross_entropy_fwd", ""),
]


def test_the_options_are_all_there():
    from hotswap.match import OPTIONS

    on, off = re.search(r"^Options: (.*?), all on,\s+and\s(.*?)An\s+option\s+that", DOCUMENT.read_text(), re.M | re.S).groups()
    said = dict.fromkeys(re.findall(r"`(\w+)`", on), True) | dict.fromkeys(re.findall(r"`(\w+)`", off), False)
    assert said == OPTIONS


def test_each_block_is_expected():
    assert len(BLOCKS) == len(EXPECTED)
    for block, (mark, _, _) in zip(BLOCKS, EXPECTED):
        assert mark in block


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All blocks, each in a fork of one process that has imported everything already."""
    folder = tmp_path_factory.mktemp("guide")
    model("qwen3").save_pretrained(folder / "model")
    parts = []
    for block in BLOCKS:
        code = block.replace("Qwen/Qwen3-0.6B", str(folder / "model")).replace('device_map="cuda"', "device_map=device")
        parts.append(BEFORE + blocks.inside(code) + AFTER)
    # what asks the classes calls our ops, too, once: before the counting
    once = "import hotswap.config, tiny\nhotswap.kernelize(tiny.model('qwen3'))"
    return blocks.run(parts, once, folder, folder / "out")


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_block(results, number):
    mark, wanted, unwanted = EXPECTED[number]
    told = results[number]
    if "enable_for_trainer" in mark and importlib.util.find_spec("liger_kernel"):
        assert "got an installed one" in told, told
        pytest.skip("a real liger_kernel is installed")
    assert "CALLS " in told, told
    made = set(told.split("CALLS ")[1].split())
    assert set(wanted.split()) <= made and not set(unwanted.split()) & made, made
