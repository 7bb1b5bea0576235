"""Every class of decoders: hotswap.generate() says what transformers' own loop says, or refuses by name before it computes.

HOTSWAP_PYTHON_FULL=1: every class of the installed transformers that can be made tiny.
"""

import os

import pytest
import tiny
import torch
import transformers
from transformers import StaticCache
from transformers.models.auto import modeling_auto

import hotswap
from hotswap.generation import decode, loop as generation

FULL = os.environ.get("HOTSWAP_PYTHON_FULL") == "1"
OPTIONS = dict(max_new_tokens=9, do_sample=False, pad_token_id=0, eos_token_id=None)
IDS = torch.randint(3, 55, (2, 12), generator=torch.Generator().manual_seed(2))
MASK = torch.ones_like(IDS)
MASK[0, :3] = 0
SMALL = dict(vocab_size=97, hidden_size=32, num_attention_heads=4, num_hidden_layers=2)
LLAMA = dict(**SMALL, num_key_value_heads=2, intermediate_size=48, pad_token_id=0)
LONGROPE = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.1, 1.2, 1.5], long_factor=[2.0, 3.0, 5.0, 9.0])
MIXTURE = dict(head_dim=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1, n_group=1, topk_group=1)


def made(name, attention="eager", **settings):
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class._from_config(model_class.config_class(**settings), attn_implementation=attention).float().eval()
    with torch.no_grad():  # weights that are not all small: other texts for other numbers
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(min(4.0, 0.1 / max(float(p.std()), 1e-3)))
            else:
                p.add_(0.1 * torch.randn_like(p))
    return model


def same(model, **options):
    """For two prompts, for one that is padded, and for one prompt alone; stock layers and swapped ones."""
    asked = [dict(inputs=IDS), dict(inputs=IDS, attention_mask=MASK), dict(inputs=IDS[:1])]
    want = [model.generate(**given, **{**OPTIONS, **options}) for given in asked]
    for kernels in (None, {}):
        if kernels is not None:
            hotswap.kernelize(model, **kernels)
        for given, ids in zip(asked, want, strict=True):
            assert torch.equal(hotswap.generate(model, **given, **{**OPTIONS, **options}), ids), (kernels, list(given))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name, settings", [
    ("FalconForCausalLM", dict(**SMALL, new_decoder_architecture=True, num_kv_heads=2)),
    ("FalconForCausalLM", dict(**SMALL, parallel_attn=False, multi_query=False)),
    ("Glm4MoeForCausalLM", dict(**LLAMA, **MIXTURE, n_shared_experts=1, use_qk_norm=True)),
    ("LlamaForCausalLM", dict(**LLAMA, max_position_embeddings=16, rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=1e4))),
    ("BloomForCausalLM", dict(vocab_size=97, hidden_size=32, n_head=4, n_layer=2)),
], ids=["falcon", "falcon of heads", "glm-4.5", "dynamic", "bloom"])  # fmt: skip
def test_classes_that_were_wrong_or_raised(name, settings, attention):
    if name == "BloomForCausalLM" and attention == "sdpa":
        pytest.skip("the class has none")
    same(made(name, attention, **settings))


def test_a_rotary_embedding_of_part_of_a_head_is_said():
    model = made("Glm4MoeForCausalLM", **LLAMA, **MIXTURE, n_shared_experts=1)
    whole = decode.WholeLayers(model)
    assert "its rotary embedding turns 4 of 8 numbers of a head" in whole.why and not whole.places


def greedy(model, ids, count):
    """By forwards of the whole text."""
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


@pytest.mark.parametrize("options", [{}, dict(repetition_penalty=1.0001)], ids=["ahead", "in turn"])
@pytest.mark.parametrize("length", [4, 15, 16, 17, 24])
def test_longrope_across_its_original_length(length, options):
    """From there on all positions turn by the long factors; transformers 5.24 computes the text again, older ones lose it."""
    model = made("Phi3ForCausalLM", **LLAMA, rope_parameters=LONGROPE, original_max_position_embeddings=16, max_position_embeddings=64)
    ids = torch.randint(3, 55, (2, length), generator=torch.Generator().manual_seed(3))
    want = greedy(model, ids, 20)
    for kernels in (False, True):
        if kernels:
            hotswap.kernelize(model)
        got = []
        streamer = type("Kept", (), dict(put=lambda self, ids: got.append(ids), end=lambda self: got.append(None)))()
        assert torch.equal(hotswap.generate(model, ids, **{**OPTIONS, **options, "max_new_tokens": 20}), want)
        said = hotswap.generate(model, ids[:1], streamer=streamer, **{**OPTIONS, **options, "max_new_tokens": 20})
        assert torch.equal(said, want[:1]) and len(got) == 22 and got[-1] is None
    ends = dict(eos_token_id=int(want[0, length + 14]))
    first = (want[0, length:] == ends["eos_token_id"]).nonzero()[0, 0]
    assert hotswap.generate(model, ids[:1], **{**OPTIONS, **ends, "max_new_tokens": 20}).shape[1] == length + int(first) + 1


def test_longrope_wants_ids():
    model = made("Phi3ForCausalLM", **LLAMA, rope_parameters=LONGROPE, original_max_position_embeddings=16, max_position_embeddings=64)
    with pytest.raises(ValueError, match="beyond original_max_position_embeddings=16"):
        hotswap.generate(model, inputs_embeds=model.get_input_embeddings()(IDS).detach(), **OPTIONS)


@pytest.mark.parametrize("name, settings, words", [
    ("GPTNeoForCausalLM", dict(vocab_size=97, hidden_size=32, num_heads=4, num_layers=2, attention_types=[[["global", "local"], 1]], window_size=8), "GPTNeo.* says"),
    ("FalconForCausalLM", dict(**SMALL, alibi=True), "alibi=True"),
    ("BertLMHeadModel", dict(**SMALL, intermediate_size=48), "is_decoder=False"),
    ("OpenAIGPTLMHeadModel", dict(vocab_size=97, n_embd=32, n_head=4, n_layer=2), "a static cache"),
], ids=["gpt-neo", "falcon with alibi", "bert", "gpt"])  # fmt: skip
def test_classes_that_it_cannot_serve_are_refused_by_name(name, settings, words):
    model, calls = made(name, **settings), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(ValueError, match=f"hotswap.generate: expected .*{words}"):
        hotswap.generate(model, IDS, **OPTIONS)
    assert not calls


def test_attention_that_takes_no_mask_of_the_device_is_refused():
    model = made("LlamaForCausalLM", **LLAMA)
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(ValueError, match="eager, sdpa or hotswap; got flex_attention"):
        hotswap.generate(model, IDS, **OPTIONS)


def test_a_prompts_own_keys_have_their_own_length():
    cache = StaticCache(config=tiny.model("llama").config, max_cache_len=20)
    own = generation._own_keys(cache, {})
    assert own.get_mask_sizes(7, 0) == (7, 0) and cache.get_mask_sizes(7, 0) == (20, 0)


def every_class():
    shrunk = pytest.importorskip("shrunk")
    for names in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        name = names if isinstance(names, str) else names[0]
        try:
            yield name, shrunk._model(getattr(transformers, name))
        except Exception:  # whatever a class raises of small settings
            continue


@pytest.mark.skipif(not FULL, reason="HOTSWAP_PYTHON_FULL=1 runs it")
def test_every_class():
    wrong, served = {}, 0
    for name, model in every_class():
        try:
            model.generate(IDS, **OPTIONS)
            model.generate(IDS, attention_mask=MASK, **OPTIONS)
        except Exception:  # its small settings do not fit each other, or stock cannot generate with router logits and padding
            continue
        try:
            same(model)
            served += 1
        except ValueError as error:
            if not str(error).startswith("hotswap.generate: expected"):
                wrong[name] = error
        except Exception as error:
            wrong[name] = error
    assert not wrong and served > 50
