"""Models with our attention against eager: logits, loss and gradients, dense, padded and packed, generation; by
transformers' own flash path through LOCAL_KERNELS, and by the name that hotswap.kernelize gives."""

import copy
import os

import pytest
import torch
from attention_calls import Calls, local_kernels  # noqa: F401
from tiny import batch, close, gradients, model, same_gradients

import hotswap

pytestmark = pytest.mark.skipif(os.environ.get("HOTSWAP_TEST_DEVICE", "").startswith("cuda"), reason="float32, which a GPU's kernels have not")

# a window shorter than the batch, caps on scores, sinks, values narrower than queries
FAMILIES = {
    "llama": {},
    "mistral": dict(sliding_window=5),
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": dict(sliding_window=5, attn_logit_softcapping=2.0),
    "gemma3_text": dict(sliding_window=5),
    "phi3": dict(sliding_window=6),
    "mixtral": dict(output_router_logits=False),
    "gpt_oss": dict(sliding_window=5, output_router_logits=False),
    "deepseek_v3": {},
    "olmo2": {},
    "llama4_text": dict(attention_chunk_size=5, layer_types=["chunked_attention", "full_attention"]),
}
ROWS, COLUMNS, PADDED = 2, 12, 5


def by_name(m, family):
    """llama4 refuses every name with flash in it; gpt_oss has one of its own."""
    m.set_attn_implementation("kernels-community/vllm-flash-attn3" if family == "gpt_oss" else "acme/flash-attn2")


def by_kernelize(m, family):
    hotswap.kernelize(m, rms_norm=False, rope=False, mlp=False, activation=False, cross_entropy=False, attention=True)


def pair(family, how):
    stock = model(family, **FAMILIES[family])
    stock.set_attn_implementation("eager")
    swapped = copy.deepcopy(stock)
    how(swapped, family)
    return stock, swapped


WAYS = [(f, by_kernelize) for f in FAMILIES] + [(f, by_name) for f in FAMILIES if f != "llama4_text"]
IDS = [f"{f}-{how.__name__}" for f, how in WAYS]


@pytest.mark.parametrize("family, how", WAYS, ids=IDS)
def test_a_step_is_eagers(family, how, local_kernels):
    stock, swapped = pair(family, how)
    data = batch(ROWS, COLUMNS)
    data["labels"][0, : PADDED + 1] = -100
    mask = torch.ones(ROWS, COLUMNS, dtype=torch.long)
    mask[0, :PADDED] = 0
    for extra, form in (({}, ""), ({"attention_mask": mask}, "varlen_")):
        with Calls() as calls:
            got = swapped(**data, **extra)
            mine = gradients(swapped, got.loss)
        want = stock(**data, **extra)
        real = (mask if extra else torch.ones_like(mask)).bool()
        close(got.logits[real], want.logits[real], 5e-6)
        close(got.loss, want.loss, 5e-6)
        same_gradients(mine, gradients(stock, want.loss), 2e-5)
        assert calls.made == {f"{form}fwd": 2, f"{form}bwd": 2}


@pytest.mark.parametrize("family, how", WAYS, ids=IDS)
def test_generation_is_eagers(family, how, local_kernels):
    stock, swapped = pair(family, how)
    ids = batch(ROWS, COLUMNS)["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, :PADDED] = 0
    options = dict(attention_mask=mask, max_new_tokens=8, do_sample=False)
    with Calls() as calls:
        got = swapped.generate(ids, **options)
    assert torch.equal(got, stock.generate(ids, **options))
    # chunks are counted from the first key, which Llama 4's cache has forgotten in the steps after the prompt
    assert sum(calls.made.values()) == 8 * 2 - (7 if family == "llama4_text" else 0)
    if how is by_kernelize and family not in ("gpt_oss", "deepseek_v3", "llama4_text"):
        static = swapped.generate(ids, cache_implementation="static", disable_compile=True, **options)
        assert torch.equal(static, got)


@pytest.mark.parametrize("family, how", WAYS, ids=IDS)
def test_packed_rows_are_sequences(family, how, local_kernels):
    stock, swapped = pair(family, how)
    ids = batch(1, COLUMNS)["input_ids"]
    places = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    with Calls() as calls:
        got = swapped(ids, position_ids=places, use_cache=False).logits
    if family == "gpt_oss" and how is by_kernelize:  # whose own masks know nothing of packed rows
        close(got, stock(ids, position_ids=places, use_cache=False).logits, 5e-6)
        return
    close(got, torch.cat([stock(part).logits for part in ids.split([5, 7], 1)], 1), 5e-6)
    assert calls.made == {"varlen_fwd": 2}


def test_kernelize_and_back():
    stock = model("mistral", sliding_window=5)
    ids = batch()["input_ids"]
    want = stock(ids).logits
    assert stock.config._attn_implementation == "sdpa"
    hotswap.kernelize(stock, attention=True)
    rows = [r for r in hotswap.report(stock).rows if r.layer == "attention"]
    assert [(r.package, r.name) for r in rows] == [("attention", f"model.layers.{i}.self_attn") for i in range(2)]
    with Calls() as calls:
        close(stock(ids).logits, want, 5e-6)
    assert calls.made == {"fwd": 2}
    hotswap.kernelize(stock)
    assert stock.config._attn_implementation == "sdpa"
    hotswap.kernelize(stock, attention=True)
    hotswap.unkernelize(stock)
    assert torch.equal(stock(ids).logits, want)
    made = model("llama")
    made.set_use_kernels(True, hotswap.kernel_config(attention=True))
    with Calls() as calls:
        made(ids)
    assert calls.made == {"fwd": 2}


def test_dropout_is_torchs_and_the_report_says_so():
    m = hotswap.kernelize(model("llama", attention_dropout=0.5), attention=True)
    assert "dropout in training by torch's" in str(hotswap.report(m))
    m.train()
    with Calls() as calls:
        m(**batch()).loss.backward()
    assert calls.made == {}
    assert all(p.grad.isfinite().all() for p in m.parameters() if p.grad is not None)


def test_a_mask_of_ones_own_is_a_tensor_and_kept():
    stock, swapped = pair("gemma2", by_kernelize)
    ids = batch()["input_ids"]
    seen = torch.ones(COLUMNS, COLUMNS, dtype=torch.bool).tril()
    seen[:4, :4] = True  # a block that sees itself
    mask = seen.expand(ROWS, 1, -1, -1)
    lowest = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    with Calls() as calls:
        got = swapped(ids, attention_mask={"full_attention": mask, "sliding_attention": mask}).logits
    close(got, stock(ids, attention_mask={"full_attention": lowest, "sliding_attention": lowest}).logits, 5e-6)
    assert calls.made == {}


def test_load_is_the_module_with_flash_attentions_functions():
    module = hotswap.load("attention")
    for name in ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"):
        assert callable(getattr(module, name))
    with pytest.raises(ValueError, match="without 'flash'"):
        module.register("my_flash")
