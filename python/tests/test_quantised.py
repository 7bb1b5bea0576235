"""Models whose weights transformers reads quantised, on a CPU: kernelized they compute what they did, and each layer whose weight
stays quantised has a row. The checkpoints are those of the C++ host's test, by each format's own writer."""

import sys
from pathlib import Path

import pytest
import torch
import transformers

import hotswap

FORMATS = Path(__file__).resolve().parents[2] / "hotswap/models/formats"
IDS = torch.arange(3, 20)[None]


@pytest.fixture(scope="module")
def writers():
    pytest.importorskip("bitsandbytes"), pytest.importorskip("compressed_tensors"), pytest.importorskip("gguf")
    sys.path.insert(0, str(FORMATS))
    try:
        import quantised_model_oracle
    finally:
        sys.path.remove(str(FORMATS))
    return quantised_model_oracle.all_models()


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS, use_cache=False).logits


def load(folder):
    kind = dict(gguf_file="model.gguf") if (folder / "model.gguf").exists() else {}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **kind).eval()


PACKED = "weight_packed, weight_scale, weight_shape"
# format: what the weights of projections are once the model has run
LOADED = {"fp8_real": "", "bnb_real": "Params4bit", "ct_w4a16": PACKED, "ct_w8a16": PACKED, "gguf_q8_0": "", "gguf_q4_k": ""}


@pytest.mark.parametrize("name", LOADED)
def test_kernelized_computes_the_same(name, writers, tmp_path):
    writers[name](tmp_path)
    expected = logits(load(tmp_path))  # before any forward of the other: some weights are unpacked by the first
    model = hotswap.kernelize(load(tmp_path))
    bound = {row.layer for row in hotswap.report(model).rows if row.package}
    assert {"RMSNorm", "SwiGLUMLP", "rotary_pos_emb"} <= bound
    found = logits(model)
    # kernels' norms and activations add in another order; bitsandbytes' products may round to bfloat16
    limit = (2e-2 if name == "bnb_real" else 1e-4) * expected.abs().max()
    assert (found - expected).abs().max() <= limit
    rows = [row for row in hotswap.report(model).rows if row.layer == "Linear" and "proj" in row.name]
    assert len(rows) == 14 and all(row.package is None and row.why for row in rows)
    reason = f"its weight is quantised ({LOADED[name]})" if LOADED[name] else "torch's own product"
    assert {row.why for row in rows} == {reason}


def test_a_packed_weight_is_left_to_its_own_layer(writers, tmp_path):
    """linear=True binds what is plain; a layer whose weight is packed keeps its forward."""
    writers["bnb_real"](tmp_path)
    model = load(tmp_path)
    expected = logits(load(tmp_path))
    hotswap.kernelize(model, linear=True)
    assert (logits(model) - expected).abs().max() <= 2e-2 * expected.abs().max()
    rows = {row.name: row for row in hotswap.report(model).rows if row.layer == "Linear"}
    assert rows["lm_head"].package == "linear"
    assert rows["model.layers.0.mlp.up_proj"].package is None
