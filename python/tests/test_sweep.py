"""A few classes of the sweep (sweep.py): some that were wrong once, and some drawn by HOTSWAP_TEST_SEED."""

import os
import random

import pytest
import transformers

import shrunk
import sweep

ALWAYS = "LlamaForCausalLM BartForConditionalGeneration T5ForConditionalGeneration DINOv3ViTModel GptOssForCausalLM MarianMTModel".split()
SEED = int(os.environ.get("HOTSWAP_TEST_SEED", 0))
DRAWN = random.Random(SEED).sample([name for name in shrunk.classes() if name not in ALWAYS], 4)


@pytest.mark.parametrize("name", ALWAYS + DRAWN)
def test_swapped_is_stock(name):
    if not hasattr(transformers, name):
        pytest.skip(f"not in transformers {transformers.__version__}")
    (result,) = sweep.run([name], say=lambda *_: None)
    assert not sweep.is_wrong(result), f"seed {SEED}: {result}"
    if name in ALWAYS:
        assert "not built" not in result
        assert all(result[way]["bound"] and result[way]["checked"] for way in sweep.WAYS), result


def test_a_wrong_number_is_found(monkeypatch):
    made = sweep.hotswap.kernelize

    def wrong(model, **options):
        made(model, **options)
        next(model.parameters()).data.mul_(1.01)
        return model

    monkeypatch.setattr(sweep.hotswap, "kernelize", wrong)
    (result,) = sweep.run(["LlamaForCausalLM"], say=lambda *_: None)
    assert sweep.is_wrong(result) and "outputs" in result["default"]["wrong"]


def test_tables_name_every_class_once():
    results = [
        {"class": "A", "not built": "ValueError: no"},
        {"class": "B", **{way: {"bound": {"RMSNorm": 2}, "stock": {}, "checked": ["outputs"], "wrong": {}} for way in sweep.WAYS}},
        {"class": "C", **{way: {"bound": {}, "stock": {}, "checked": [], "wrong": {"outputs": "0.1 of logits"}} for way in sweep.WAYS}},
    ]
    text = sweep.tables(results)
    assert "3 classes, 2 built tiny" in text and "(2 comparisons), 1 wrong" in text
    assert "| RMSNorm | has none | B |" in text and "| C | default, outputs: 0.1 of logits; attention" in text
    assert "| ValueError | A |" in text
