"""hotswap.generate with more than ids: a cache that has a beginning, texts beyond the model's positions; and what it refuses.
An attn_implementation by our name, in a process that has done nothing else."""

import os
import subprocess
import sys

import pytest
import tiny
import torch
from transformers import DynamicCache, LogitsProcessorList, StaticCache

import hotswap
from hotswap.core.replacement import cache_name

GREEDY = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
PROMPT = torch.tensor([[5, 9, 33, 21], [7, 61, 3, 8]])
FAMILIES = {"llama": {}, "qwen3": {}, "mixtral": dict(output_router_logits=False, sliding_window=None)}


def pair(family, **changes):
    stock = tiny.model(family, **FAMILIES[family], **changes).eval()
    return stock, tiny.twin(stock)


def static(m, size=32):
    return StaticCache(config=m.config, max_cache_len=size)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_static_cache(family, begun):
    texts = []
    for m in pair(family):
        cache, ids = static(m), PROMPT
        if begun:
            m(PROMPT, use_cache=True, **{cache_name(m.forward): cache})
            ids = torch.cat([PROMPT, torch.tensor([[11], [12]])], 1)
        texts.append((hotswap.generate(m, ids, **GREEDY, past_key_values=cache), m.generate(ids, **GREEDY)))
    assert all(torch.equal(ours, expected) for ours, expected in texts) and torch.equal(texts[0][0], texts[1][0])


@pytest.mark.parametrize("columns", [5, 12])
@pytest.mark.parametrize("family", FAMILIES)
def test_beyond_the_models_positions(family, columns):
    stock, ours = pair(family, max_position_embeddings=8)
    ids = tiny.batch(2, columns)["input_ids"]
    assert torch.equal(hotswap.generate(ours, ids, **GREEDY), stock.generate(ids, **GREEDY))


REFUSED = {
    "a cache that grows": (lambda m: dict(past_key_values=DynamicCache(config=m.config)), "got a cache of DynamicLayer"),
    "a cache without room": (lambda m: dict(past_key_values=static(m, 8)), "expected a static cache of 9 tokens; got max_cache_len=8"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    options, message = REFUSED[what]
    m = pair("llama")[1]
    with pytest.raises(ValueError, match=message):
        hotswap.generate(m, PROMPT, **{**GREEDY, **options(m)})


def test_a_cache_with_just_enough_room():
    stock, ours = pair("llama")
    assert torch.equal(hotswap.generate(ours, PROMPT, **GREEDY, past_key_values=static(ours, 9)), stock.generate(PROMPT, **GREEDY))


BY_NAME = """
import hotswap
from transformers import AutoModelForCausalLM
import sys, torch
m = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="hotswap").eval()
ids = torch.tensor([[5, 9, 33, 21], [7, 61, 3, 8]])
expected = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
assert (m(ids).logits - expected(ids).logits).norm() < 1e-5 * expected(ids).logits.norm()
rows = [row for row in hotswap.report(m).rows if row.layer == "attention"]
assert len(rows) == 2 and all(row.package == "attention" for row in rows), rows
"""


def test_attention_by_name_in_a_fresh_process(tmp_path):
    tiny.model("llama").save_pretrained(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", BY_NAME, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "phi3"])
def test_a_longer_call_before_leaves_no_trace(family):
    """transformers keeps the longest length of a static cache on the model, and attention over more keys rounds otherwise."""
    model, scores = tiny.model(family).eval(), []
    keep = LogitsProcessorList([lambda ids, values: scores.append(values.clone()) or values])
    before = set(vars(model))
    for length in (4, 40, 4):
        hotswap.generate(model, PROMPT, logits_processor=keep, max_new_tokens=length, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert set(vars(model)) == before
    assert all(torch.equal(a, b) for a, b in zip(scores[:4], scores[-4:], strict=True))
