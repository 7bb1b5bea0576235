"""Frequencies that follow the length of the text: each call has those of its own text, whatever was computed before it or is at the same
time; transformers keeps the last ones on the module."""

import copy
import random

import pytest
import tiny
import torch
from test_threads import in_threads, often  # noqa: F401  (a fixture)

import hotswap

DYNAMIC = dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0)
LONG = dict(rope_type="longrope", short_factor=[1.0] * 2, long_factor=[3.0] * 2, rope_theta=10000.0, original_max_position_embeddings=8)
PLAIN = dict(rope_type="default", rope_theta=10000.0)
MODELS = {
    "dynamic": ("llama", dict(rope_parameters=DYNAMIC, max_position_embeddings=8)),
    "longrope": ("phi3", dict(rope_parameters=LONG, max_position_embeddings=64, original_max_position_embeddings=8)),
    "by kind of layer": (
        "gemma3_text", dict(rope_parameters=dict(full_attention=DYNAMIC, sliding_attention=PLAIN), max_position_embeddings=8),
    ),
}  # fmt: skip
LENGTHS = (5, 11, 20, 8, 13)  # around the original 8
GREEDY = dict(max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)


def made(kind):
    family, changes = MODELS[kind]
    return tiny.model(family, **changes).eval()


def requests(model, kind):
    calls = []
    for length in LENGTHS:
        data = tiny.batch(1, length, seed=length)
        ids = data["input_ids"]
        calls.append(lambda m, data=data: m(**data).logits)
        calls.append(lambda m, ids=ids: m.generate(ids, **GREEDY))
        if kind != "by kind of layer":  # windows are no static cache of ours
            calls.append(lambda m, ids=ids: hotswap.generate(m, ids, **GREEDY))
    return calls


@pytest.mark.parametrize("kind", MODELS)
def test_each_text_has_its_own(kind):
    stock = made(kind)
    ours = hotswap.kernelize(copy.deepcopy(stock))
    calls = requests(ours, kind)
    single = [call(hotswap.kernelize(copy.deepcopy(stock))) for call in calls]
    for call, expected in zip(calls, single):
        fresh = call(copy.deepcopy(stock))
        assert torch.equal(expected, fresh) if expected.dtype == torch.int64 else (expected - fresh).norm() <= 1e-5 * fresh.norm()
    before = {name: value.clone() for name, value in ours.named_buffers()}

    def work(k):
        for i in random.Random(k).sample(range(len(calls)), len(calls)):
            assert torch.equal(calls[i](ours), single[i]), f"request {i}"

    in_threads(work, 8)
    assert all(torch.equal(value, before[name]) for name, value in ours.named_buffers())
    assert type(hotswap.unkernelize(ours).model.rotary_emb) is type(stock.model.rotary_emb)
