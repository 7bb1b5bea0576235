"""docs/python.md: every Python block runs, word for word but for names of models and folders, and our kernels are called where it says so."""

import importlib.util
import json
import re
from pathlib import Path

import blocks
import numpy
import pytest
from test_hub import METADATA
from test_mapping import LAYERS
from tiny import model

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)

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
model = AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/model", device_map=device)
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
    ('"rotary_pos_emb": ("org/rotary:Rotary"', "norm.rms_norm", "mlp.swiglu rotary.rotary"),
    ("/a/folder:Layer", "", "norm.rms_norm mlp.swiglu rotary.rotary"),
    ("use_kernels=True,\n    kernel_config=hotswap.kernel_config(),", "norm.rms_norm mlp.swiglu rotary.rotary", ""),
    ("model.eval()", "norm.rms_norm norm.rms_norm_fwd norm.rms_norm_bwd mlp.swiglu_bwd_ rotary.rotary_bwd loss.cross_entropy_bwd", ""),
    ("Mode.TRAINING | Mode.TORCH_COMPILE", "norm.rms_norm mlp.swiglu rotary.rotary", ""),
    ("use_local_kernel=True", "norm.rms_norm", "mlp.swiglu rotary.rotary"),
    ("rms_norm=False", "mlp.swiglu rotary.rotary", "norm.rms_norm"),
    ("apply_liger_kernel_to_qwen3", "norm.rms_norm mlp.swiglu rotary.rotary", ""),
    ("enable_for_trainer", "mlp.swiglu_bwd_ rotary.rotary_bwd loss.cross_entropy_bwd", "norm.rms_norm_fwd"),
    ("class Block", "norm.rms_norm_fwd norm.rms_norm_bwd loss.linear_cross_entropy_fwd", ""),
    ("gguf_file=", "norm.rms_norm mlp.swiglu rotary.rotary", ""),
]


def test_the_options_are_all_there():
    from hotswap.matchers.registered import OPTIONS

    on, off = re.search(r"^Options: (.*?), all on,\s+and\s(.*?)An\s+option\s+that", DOCUMENT.read_text(), re.M | re.S).groups()
    said = dict.fromkeys(re.findall(r"`(\w+)`", on), True) | dict.fromkeys(re.findall(r"`(\w+)`", off), False)
    assert said == OPTIONS


def test_each_block_is_expected():
    assert len(BLOCKS) == len(EXPECTED)
    for block, (mark, _, _) in zip(BLOCKS, EXPECTED):
        assert mark in block


def acme(folder: Path) -> None:
    """A package of layers in plain torch."""
    (build := folder / "build/torch-universal").mkdir(parents=True)
    (build / "__init__.py").write_text("from . import layers\n")
    (build / "layers.py").write_text(LAYERS)
    (build / "metadata.json").write_text(json.dumps(METADATA | {"name": "acme", "id": "_acme_of_the_guide"}))


def gguf_file(folder: Path) -> Path:
    """A tiny Llama in Q8_0; its folder."""
    if importlib.util.find_spec("gguf") is None:
        return folder
    import gguf

    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "model-Q8_0.gguf", "llama")
    writer.add_block_count(1), writer.add_context_length(64), writer.add_embedding_length(32), writer.add_feed_forward_length(64)
    writer.add_head_count(4), writer.add_head_count_kv(2), writer.add_layer_norm_rms_eps(1e-6), writer.add_rope_dimension_count(8)
    writer.add_vocab_size(97)
    parts = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    parts |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64), "attn_norm": (32,), "ffn_norm": (32,)}
    shapes = {f"blk.0.{name}": shape for name, shape in parts.items()}
    shapes |= {"token_embd": (97, 32), "output": (97, 32), "output_norm": (32,)}
    random = numpy.random.default_rng(0)
    for name, shape in shapes.items():
        weight = (0.3 * random.standard_normal(shape) + (len(shape) == 1)).astype(numpy.float32)
        packed = weight if len(shape) == 1 else gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
        kind = None if len(shape) == 1 else gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All blocks, each in a fork of one process that has imported everything already."""
    folder = tmp_path_factory.mktemp("guide")
    model("qwen3").save_pretrained(folder / "model")
    acme(folder / "acme")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("LOCAL_KERNELS", f"org/rotary={folder / 'acme'}")
    names = {"Qwen/Qwen3-0.6B": folder / "model", "/a/folder:Layer": f"{folder / 'acme'}:RMSNorm", "org/name-GGUF": gguf_file(folder / "gguf")}
    parts = []
    for block in BLOCKS:
        code = block.replace('device_map="cuda"', "device_map=device")
        for name, here in names.items():
            code = code.replace(name, str(here))
        parts.append(BEFORE + blocks.inside(code) + AFTER)
    # what asks the classes calls our ops, too, once: before the counting
    once = "import hotswap.config, tiny\nhotswap.kernelize(tiny.model('qwen3'))"
    found = blocks.run(parts, once, folder, folder / "out")
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_block(results, number):
    mark, wanted, unwanted = EXPECTED[number]
    told = results[number]
    if mark == "gguf_file=" and importlib.util.find_spec("gguf") is None:
        pytest.skip("no package gguf")
    if "enable_for_trainer" in mark and importlib.util.find_spec("liger_kernel"):
        assert "got an installed one" in told, told
        pytest.skip("a real liger_kernel is installed")
    assert "CALLS " in told, told
    made = set(told.split("CALLS ")[1].split())
    assert set(wanted.split()) <= made and not set(unwanted.split()) & made, made
