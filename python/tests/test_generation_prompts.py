"""generate() takes what transformers' own takes as a prompt, embeddings and a cache that has the beginning too, and a streamer gets the same."""

import functools

import pytest
import torch
from test_generation import OPTIONS, PROMPT, model_of, stock
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import StaticCache

import hotswap
from hotswap.core.replacement import cache_name
from hotswap.generation import decode, loop as generation


class _Kept:
    def __init__(self):
        self.got, self.ended = [], 0

    def put(self, value):
        self.got += value.flatten().tolist()

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("options", [{}, dict(repetition_penalty=1.5)])
def test_a_streamer_gets_the_prompt_and_every_token(options):
    model, streamer = model_of("llama"), _Kept()
    got = hotswap.generate(model, PROMPT[:1], streamer=streamer, **{**OPTIONS, **options})
    assert streamer.got == got[0].tolist() and streamer.ended == 1


def test_who_streams_has_the_first_token_before_steps_are_prepared(monkeypatch):
    model, streamer, order = model_of("llama"), _Kept(), []
    whole_layers = decode.WholeLayers
    monkeypatch.setattr(decode, "WholeLayers", lambda *args: order.append(list(streamer.got)) or whole_layers(*args))
    got = hotswap.generate(model, PROMPT[:1], streamer=streamer, **OPTIONS)
    assert order == [got[0, :5].tolist()]
    for more in (dict(max_new_tokens=1), dict(eos_token_id=int(got[0, 4]))):  # nothing to prepare
        assert hotswap.generate(model, PROMPT[:1], streamer=_Kept(), **{**OPTIONS, **more}).shape[1] == 5
    assert len(order) == 1


@pytest.mark.parametrize("padded", [False, True])
def test_a_prompt_attends_to_its_own_keys_and_without_cudnn(monkeypatch, padded):
    model, mask, seen = model_of("llama"), torch.ones_like(PROMPT), []
    mask[1, 0] = 1 - padded
    real = torch.nn.functional.scaled_dot_product_attention

    def attention(q, k, v, **options):
        seen.append((q.shape[2], k.shape[2], torch.backends.cuda.cudnn_sdp_enabled()))
        return real(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    hotswap.generate(model, PROMPT, attention_mask=mask, **{**OPTIONS, "max_new_tokens": 1})
    assert set(seen) == {(4, 4, False)} or padded
    assert all(queries == 4 and not cudnn for queries, _, cudnn in seen) and len(seen) == model.config.num_hidden_layers
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
    with sdpa_kernel(SDPBackend.MATH):  # somebody has chosen
        hotswap.generate(model, PROMPT, attention_mask=mask, **{**OPTIONS, "max_new_tokens": 1})
    seen.clear()
    monkeypatch.setattr(generation, "_PLANS_PAY", 2 * 4**2)
    hotswap.generate(model, PROMPT, attention_mask=mask, **{**OPTIONS, "max_new_tokens": 1})
    assert {cudnn for *_, cudnn in seen} == {before}, "a long prompt"


def test_prompts_by_other_ways():
    """The begin token where there is no prompt, embeddings, padded too, `inputs`, several sequences a prompt; and what a streamer gets
    of it."""
    model = model_of("llama")
    embeddings = model.get_input_embeddings()(PROMPT).detach()
    padded = dict(inputs_embeds=embeddings, attention_mask=torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))
    for ids, options in ((None, dict(bos_token_id=1)), (None, dict(inputs_embeds=embeddings)), (None, padded),
                         (PROMPT[:1], dict(num_return_sequences=2, do_sample=True))):  # fmt: skip
        theirs, ours = _Kept(), _Kept()
        torch.manual_seed(3)
        want = stock(model, ids, streamer=theirs, **options)
        torch.manual_seed(3)
        assert torch.equal(hotswap.generate(model, ids, streamer=ours, **{**OPTIONS, **options}), want)
        assert ours.got == theirs.got
    assert torch.equal(hotswap.generate(model, inputs=PROMPT, **OPTIONS), stock(model, PROMPT))


@pytest.mark.parametrize("given", ["ids", "new ids", "embeddings"])
def test_a_cache_that_has_the_beginning(given):
    """As transformers: all ids or, with a mask of all, the new ones."""
    model, want = model_of("llama"), stock(model_of("llama"), PROMPT)

    def said(say, past):
        cache = StaticCache(config=model.config, max_cache_len=32)
        name = cache_name(model.forward)
        with torch.no_grad():
            model(PROMPT[:, :past], **{name: cache})
        if given == "embeddings":
            embeddings = model.get_input_embeddings()(PROMPT).detach()
            return say(**{name: cache}, inputs_embeds=embeddings, **OPTIONS)
        ids, mask = PROMPT[:, past * (given == "new ids") :], torch.ones_like(PROMPT)
        return say(ids, **{name: cache}, attention_mask=mask, **OPTIONS)

    for past in (1, 3):
        got = said(functools.partial(hotswap.generate, model), past)
        assert torch.equal(got, said(functools.partial(model.generate, disable_compile=True), past))
        assert torch.equal(got[:, -12:], want[:, -12:])
