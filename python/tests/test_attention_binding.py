"""Which models attention=True binds, and what a bound one does with masks, types and keywords that the ops do not take."""

import copy
import importlib
import pickle

import pytest
import torch
import transformers
from attention_calls import Calls
from tiny import batch, close, gradients, model, same_gradients
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, create_sliding_window_causal_mask

import hotswap
import shrunk
from hotswap.core import agree
from hotswap.core.packages import package
from hotswap.core.replacement import cache_name
from hotswap.matchers import attention

pytestmark = pytest.mark.skipif(torch.get_default_device().type == "cuda", reason="float32, which a GPU's kernels have not")
ONLY = dict(attention=True, rms_norm=False, layer_norm=False, rope=False, mlp=False, activation=False, cross_entropy=False)


def built(name):
    if not hasattr(transformers, name):
        pytest.skip(f"not in transformers {transformers.__version__}")
    return shrunk.build(getattr(transformers, name))


def rows(m):
    return [row for row in hotswap.report(m).rows if row.layer == "attention"]


def masked(inputs, side):
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    return inputs | dict(attention_mask=mask)


# ---- binding --------------------------------------------------------------------------------------------------------

ENCODER_DECODERS = ["BartForConditionalGeneration", "MarianMTModel", "M2M100ForConditionalGeneration", "T5GemmaForConditionalGeneration"]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_an_encoders_padding_is_none_of_the_decoders(name, side):
    stock, inputs = built(name)
    swapped = hotswap.kernelize(copy.deepcopy(stock), **ONLY)
    for columns in (7, inputs["input_ids"].shape[1]):  # as many queries as keys, too
        given = masked(inputs, side) | dict(decoder_input_ids=shrunk._ids(2, columns, 5))
        with Calls() as calls, torch.no_grad():
            got = swapped(**given).logits
        assert calls.made
        close(got, stock(**given).logits, 1e-5)
    given = dict(masked(inputs, side), max_new_tokens=5, do_sample=False)
    given.pop("decoder_input_ids", None)
    assert torch.equal(swapped.generate(**given), stock.generate(**given))


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "DogeForCausalLM"])
def test_what_flash_attention_does_not_serve_stays_stock(name):
    stock, inputs = built(name)
    swapped = hotswap.kernelize(copy.deepcopy(stock), attention=True)
    assert rows(swapped) and all(row.package is None and row.why and not row.by_choice for row in rows(swapped))
    with torch.no_grad():
        close(swapped(**masked(inputs, "left")).logits[1], stock(**masked(inputs, "left")).logits[1], 1e-4)
    assert all(row.by_choice for row in rows(hotswap.kernelize(copy.deepcopy(stock)))), "attention is off there"


def test_an_attention_with_another_formula_stays_stock(monkeypatch):
    from transformers.models.llama import modeling_llama

    def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        return (query * 2).transpose(1, 2), None

    monkeypatch.setattr(agree, "_known", {})  # forwards that see it are not for other tests
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", eager_attention_forward)
    m = hotswap.kernelize(model("llama"), attention=True)
    assert {row.why for row in rows(m)} == {"LlamaAttention computes something else"}
    assert m.config._attn_implementation == "sdpa"


def test_chunks_are_what_the_package_has_and_flash_attention_has_not():
    stock, _ = built("Llama4ForCausalLM")
    assert all(row.package for row in rows(hotswap.kernelize(stock, attention=True)))


def test_a_keyword_that_is_not_understood_is_an_error_by_name():
    forward = hotswap.load("attention").interface.attention_forward
    q = torch.randn(2, 4, 5, 8)
    attention_module = next(m for m in built("DeepseekV32ForCausalLM").model.modules() if attention.is_attention(m))
    with pytest.raises(NotImplementedError, match="indices of DeepseekV32Attention"):
        forward(attention_module, q, q, q, None, indices=torch.zeros(1))
    bias = torch.randn(1, 4, 5, 5)
    got, _ = forward(torch.nn.Module(), q, q, q, None, is_causal=False, position_bias=bias)
    close(got, ((q @ q.mT * 8**-0.5 + bias).softmax(-1) @ q).transpose(1, 2))


def test_strict_names_an_attention_that_stays_stock():
    with pytest.raises(RuntimeError, match="T5Attention"):
        hotswap.kernelize(built("T5ForConditionalGeneration").model, strict=True, rms_norm=False, attention=True)


# ---- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, torch.tensor([[0] * 4 + [1] * 8, [1] * 12])])
def test_float64_runs_torchs_attention_and_the_report_says_so(mask):
    stock = model("mistral", sliding_window=5).double()  # not beside eager: its lowest number is -inf in a float32 softmax
    swapped = hotswap.kernelize(copy.deepcopy(stock), **ONLY)
    assert "float64 on cpu outside of autocast by torch's" in str(hotswap.report(swapped))
    data = batch() | dict(attention_mask=mask)
    with Calls() as calls:
        got = swapped(**data)
    assert calls.made == {}
    real = torch.ones(2, 12, dtype=torch.bool) if mask is None else mask.bool()
    close(got.logits[real], stock(**data).logits[real], 1e-6)


def test_queries_in_float32_under_autocast():
    """As Qwen3's norms leave them."""
    stock = model("qwen3")
    swapped = hotswap.kernelize(copy.deepcopy(stock), **ONLY)
    with torch.autocast("cpu", torch.bfloat16), Calls() as calls:
        got = swapped(**batch())
    assert calls.made == {"fwd": 2}
    close(got.logits, stock(**batch()).logits, 2e-2)


# ---- masks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def never_asks(monkeypatch):
    """The CPU's masks as a GPU's: nothing waits for the device."""
    masks = importlib.import_module(f"{package('attention').module.__name__}.masks")
    monkeypatch.setattr(masks, "may_wait", lambda device, traced: False)
    monkeypatch.setattr(masks, "_without_padding", None)  # which waits
    return masks


@pytest.mark.parametrize("holes", ["left", "right", "both", "between", "all"])
@pytest.mark.parametrize("family, more", [("llama", {}), ("mistral", dict(sliding_window=50)), ("gemma2", dict(attn_logit_softcapping=2.0))])
def test_masks_that_do_not_wait(never_asks, family, more, holes):
    stock = model(family, **more)
    stock.set_attn_implementation("eager")
    swapped = hotswap.kernelize(copy.deepcopy(stock), **ONLY)
    data, mask = batch(3, 12), torch.ones(3, 12, dtype=torch.long)
    if holes in ("left", "both"):
        mask[0, :5] = 0
    if holes in ("right", "both"):
        mask[1, -4:] = 0
    if holes == "between":
        mask[0, 2:4] = 0
    real = mask.bool()
    seen = real & torch.nn.functional.pad(real[:, :-1], (1, 0))  # what padding before a token says of it is nobody's
    data["labels"] = data["labels"].masked_fill(~seen, -100)
    with Calls() as calls:
        got = swapped(**data, attention_mask=mask)
        mine = gradients(swapped, got.loss)
    assert calls.made == {"varlen_fwd": 2, "varlen_bwd": 2}
    want = stock(**data, attention_mask=mask)
    close(got.logits[real], want.logits[real], 5e-6)
    same_gradients(mine, gradients(stock, want.loss), 2e-5)
    if holes in ("left", "all"):
        options = dict(attention_mask=mask, max_new_tokens=5, do_sample=False)
        assert torch.equal(swapped.generate(data["input_ids"], **options), stock.generate(data["input_ids"], **options))


@pytest.mark.parametrize("family", ["llama", "gemma2", "llama4_text"])
def test_while_a_graph_is_captured(monkeypatch, family):
    """transformers then cannot say whether rows are packed, and hands the mask that would tell."""
    stock = model(family, **({"attn_logit_softcapping": 2.0} if family == "gemma2" else {}))
    stock.set_attn_implementation("eager")
    swapped = hotswap.kernelize(copy.deepcopy(stock), **ONLY)
    want = stock(**batch())
    for module in (transformers.masking_utils, transformers.utils.import_utils):
        monkeypatch.setattr(module, "is_tracing", lambda tensor=None: True)
    with Calls() as calls:
        got = swapped(**batch(), use_cache=False)
    assert calls.made == {}
    close(got.logits, want.logits, 5e-6)
    same_gradients(gradients(swapped, got.loss), gradients(stock, want.loss), 2e-5)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders_masks_that_do_not_wait(never_asks, name):
    test_an_encoders_padding_is_none_of_the_decoders(name, "right")


CONFIG = transformers.LlamaConfig(hidden_size=16, num_attention_heads=2, sliding_window=3, attn_implementation="hotswap")
MAKERS = [create_causal_mask, create_sliding_window_causal_mask, create_bidirectional_mask]


@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("padded", [False, True])
def test_a_description_is_the_same_as_its_tensor(make, padded):
    hotswap.load("attention").register("hotswap")
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]) if padded else None
    x, config = torch.zeros(2, 5, 16), copy.deepcopy(CONFIG)
    more = {} if make is create_bidirectional_mask else {cache_name(make): None}
    config._attn_implementation_internal = "hotswap"
    described = make(config, x, attention_mask=mask, **more)
    assert described.tensor(5, 5, "cpu").dtype == torch.bool
    config._attn_implementation_internal = "eager"
    want = make(config, x, attention_mask=mask, **more)
    want = torch.zeros(2, 1, 5, 5) if want is None else want
    rows = (want == 0).any(-1)  # a query that sees nothing: eager's sees all alike
    got = described.tensor(5, 5, "cpu").expand(2, 1, 5, 5)
    assert torch.equal(got[rows], (want == 0)[rows])


def test_a_model_may_look_into_a_mask():
    hotswap.load("attention").register("hotswap")
    config = copy.deepcopy(CONFIG)
    config._attn_implementation_internal = "hotswap"
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    described = create_causal_mask(config, torch.zeros(2, 3, 16), attention_mask=mask, **{cache_name(create_causal_mask): None})
    want = mask[:, None, None, :].bool() & torch.ones(3, 3, dtype=torch.bool).tril()
    assert described.shape == want.shape and torch.equal(described.reshape(2, 9), want.reshape(2, 9))
    assert torch.equal(torch.where(described, 1, 0), want.long()) and torch.equal(described.to(torch.float32), want.float())
    assert type(described.to("cpu")) is type(described)


def _remade(value):
    """As transformers from 5.22 on moves the inputs of a prompt whose ids are on another device than the model."""
    return type(value)(_remade(part) for part in value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("padded", [False, True])
def test_a_description_is_remade_from_its_parts(padded):
    hotswap.load("attention").register("hotswap")
    config = copy.deepcopy(CONFIG)
    config._attn_implementation_internal = "hotswap"
    padding = torch.tensor([[0, 1, 1], [1, 1, 1]]) if padded else None
    described = create_causal_mask(config, torch.zeros(2, 3, 16), attention_mask=padding, **{cache_name(create_causal_mask): None})
    made = _remade(described)
    assert type(made) is type(described) and type(made.keys_of) is type(described.keys_of)
    assert torch.equal(made.tensor(3, 3, "cpu"), described.tensor(3, 3, "cpu"))
    assert copy.copy(made)._replace(chunk=2).chunk == 2 and pickle.loads(pickle.dumps(made)).window == described.window
    moved = described.to("meta")
    assert moved.device.type == "meta" and all(part.device.type == "meta" for part in moved if isinstance(part, torch.Tensor))
    if hasattr(transformers.pytorch_utils, "move_to_device"):
        found = transformers.pytorch_utils.move_to_device(dict(attention_mask=described), torch.device("meta"))["attention_mask"]
        assert type(found) is type(described) and all(part.is_meta for part in found if isinstance(part, torch.Tensor))
