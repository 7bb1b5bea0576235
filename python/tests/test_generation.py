"""generate() says what transformers' own says: greedy and sampled, padded, with processors, criteria and ends.
What a prompt may be, and who streams: test_generation_prompts.py."""

import contextlib
import string

import pytest
import tokenizers
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import EosTokenCriteria, LogitsProcessor, LogitsProcessorList, MaxLengthCriteria, PreTrainedTokenizerFast
from transformers import StoppingCriteria, StoppingCriteriaList, StopStringCriteria

import hotswap
import tiny
from hotswap.core.packages import package
from hotswap.generation import decode, loop as generation

WHOLE = ["llama", "qwen2", "qwen3", "granite"]  # families whose layers are the op's
PARTS = ["gemma", "scaled", "olmo2"]  # static caches, and layers that compute something else
ON_GPU = torch.get_default_device().type == "cuda"
PROMPT = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
OPTIONS = dict(max_new_tokens=12, eos_token_id=None, pad_token_id=0, do_sample=False)


def model_of(name):
    torch.manual_seed(0)
    if name == "scaled":  # the same class as one whose layers are the op's
        return tiny.model("granite", residual_multiplier=0.3).eval()
    return tiny.model(name).eval()


def stock(model, ids, **options):
    return model.generate(ids, cache_implementation="static", disable_compile=True, **{**OPTIONS, **options})


def calls():
    return package("decode").calls("decoder_layer")


def choices():
    return package("linear").calls("largest_")


@pytest.mark.parametrize("name", WHOLE + PARTS)
def test_greedy_says_what_transformers_says(name):
    model = model_of(name)
    want, before, chosen = stock(model, PROMPT), calls(), choices()
    got = hotswap.generate(model, PROMPT, **OPTIONS)
    assert torch.equal(got, want)
    assert choices() == chosen + (2 if ON_GPU else 11), "the first token is the prompt's; there a graph has the op after two steps"
    layers = model.config.num_hidden_layers
    # of 12 tokens the first is the prompt's; one more step asks each layer's class
    steps = calls() - before
    if name in WHOLE and not ON_GPU:  # there the op is for 16-bit numbers and wider heads: test_whole_layers_on_a_gpu
        assert 11 * layers <= steps <= 11 * layers + len(decode._ACTIVATIONS)
    else:
        assert steps <= len(decode._ACTIVATIONS)
    assert all("forward" not in layer.__dict__ for layer in decode.layers_of(model)), "nothing stays bound"


@pytest.mark.skipif(ON_GPU, reason="our attention is for 16-bit numbers there")
@pytest.mark.parametrize("name", ["llama", "gemma"])
@pytest.mark.parametrize("mask", [None, torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])])
def test_with_our_attention(name, mask):
    """The prompt is attended by its ops; a step's keys are told by a tensor."""
    model = model_of(name)
    more = {} if mask is None else dict(attention_mask=mask)
    want = stock(model, PROMPT, **more)
    hotswap.kernelize(model, attention=True)
    op = "attention" if mask is None else "attention_varlen"
    before = package("attention").calls(op)
    assert torch.equal(hotswap.generate(model, PROMPT, **OPTIONS, **more), want)
    assert package("attention").calls(op) == before + model.config.num_hidden_layers


@pytest.mark.skipif(ON_GPU, reason="our attention is for 16-bit types there")
@pytest.mark.parametrize("method", ["contiguous", "clone", "detach"])
def test_a_prepared_mask_stays_a_description(monkeypatch, method):
    """transformers 5.22 makes the mask of a prompt contiguous: as a tensor over the whole cache it would go by torch's attention."""
    model = hotswap.kernelize(model_of("llama"), attention=True)
    expected, prepare = hotswap.generate(model, PROMPT, **OPTIONS), model.prepare_inputs_for_generation

    def prepared(*args, **kwargs):
        inputs = prepare(*args, **kwargs)
        if (mask := inputs.get("attention_mask")) is not None:
            inputs["attention_mask"] = getattr(mask, method)()
        return inputs

    monkeypatch.setattr(model, "prepare_inputs_for_generation", prepared)
    before = package("attention").calls("attention")
    assert torch.equal(hotswap.generate(model, PROMPT, **OPTIONS), expected)
    assert package("attention").calls("attention") == before + model.config.num_hidden_layers


def captured_and_not(monkeypatch, seed, whole, *args, **options):
    """What hotswap.generate says by a captured step, which is what it says by the same step uncaptured, bit for bit. whole: do its
    layers go by one op?"""
    said = []
    for captured in (True, False, True):
        if not captured:
            monkeypatch.setattr(generation, "_Graph", lambda step: step)
        torch.manual_seed(seed)
        before = calls()
        said.append(hotswap.generate(*args, **{**OPTIONS, **options}))
        assert (calls() > before) == whole
        monkeypatch.undo()
    assert torch.equal(said[0], said[1]) and torch.equal(said[0], said[2])
    return said[0]


@pytest.mark.skipif(not ON_GPU, reason="no GPU: HOTSWAP_TEST_DEVICE=cuda asks for it")
@pytest.mark.parametrize("options", [{}, dict(do_sample=True, top_k=20), dict(repetition_penalty=1.2)])
def test_whole_layers_on_a_gpu(monkeypatch, options):
    """What is captured says what the same step says uncaptured, by the same kernels: bit for bit."""
    model = tiny.model("qwen3", head_dim=64, hidden_size=64).to(torch.bfloat16).eval()
    captured_and_not(monkeypatch, 5, True, model, PROMPT, **options)
    want = stock(model, PROMPT[:, :3], max_new_tokens=1)  # the prefill is transformers' own
    assert torch.equal(hotswap.generate(model, PROMPT[:, :3], **{**OPTIONS, "max_new_tokens": 1}), want)


@pytest.mark.parametrize("name", PARTS)
def test_layers_that_compute_something_else_say_so(name):
    model = model_of(name)
    bound = decode.WholeLayers(model)
    assert not bound.places and sum(map(len, bound.why.values())) == model.config.num_hidden_layers
    assert all("forward" not in layer.__dict__ for layer in decode.layers_of(model))


@pytest.mark.parametrize("options", [
    dict(top_k=0), dict(temperature=0.7, top_k=20, top_p=0.9), dict(min_p=0.05, top_k=0), dict(repetition_penalty=1.3),
    dict(no_repeat_ngram_size=2, temperature=2.0),
])  # fmt: skip
def test_samples_are_those_of_transformers(options):
    model = model_of("qwen3")
    torch.manual_seed(3)
    want = stock(model, PROMPT, **{"do_sample": True, **options})
    torch.manual_seed(3)
    assert torch.equal(hotswap.generate(model, PROMPT, **{**OPTIONS, "do_sample": True, **options}), want)


class _NotTwice(LogitsProcessor):
    """Of one's own: looks at the ids."""

    def __call__(self, ids, scores):
        return scores.scatter(1, ids, -torch.inf)


@pytest.mark.parametrize("options", [
    dict(logits_processor=LogitsProcessorList([_NotTwice()])),
    dict(logits_processor=LogitsProcessorList([_NotTwice()]), do_sample=True, top_k=5, num_return_sequences=3),
    dict(min_new_tokens=5, eos_token_id=list(range(20, 60))),
    dict(bad_words_ids=[[7], [8, 9]], suppress_tokens=list(range(10, 60))),
    dict(sequence_bias={(20,): 5.0}, exponential_decay_length_penalty=(2, 1.5), eos_token_id=30),
    dict(prefix_allowed_tokens_fn=lambda row, ids: [10 + row, 12, 13]),
    dict(do_sample=True, typical_p=0.8, epsilon_cutoff=0.01, renormalize_logits=True),
    dict(max_time=0.0),
], ids=lambda options: next(iter(options)))  # fmt: skip
def test_processors_and_limits_are_those_of_transformers(options):
    model = model_of("llama")
    torch.manual_seed(3)
    want = stock(model, PROMPT, **options)
    torch.manual_seed(3)
    assert torch.equal(hotswap.generate(model, PROMPT, **{**OPTIONS, **options}), want)


def test_a_token_is_drawn_as_often_as_it_is_likely():
    """By chi-square, of the second token behind each first one: the first is the prefill's, the second a step's."""
    model = tiny.model("llama", vocab_size=8, pad_token_id=None, bos_token_id=None, eos_token_id=None).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # no two tokens as likely
    rows, prompt = 4000, torch.tensor([[1, 2, 3]])
    torch.manual_seed(11)
    options = dict(do_sample=True, temperature=0.8, top_k=6, max_new_tokens=2, eos_token_id=None)
    said = hotswap.generate(model, prompt.expand(rows, -1), **options)[:, 3:]
    drawn = 0
    for before in said[:, 0].unique():
        with torch.no_grad():
            logits = model(torch.cat([prompt, before.view(1, 1)], 1)).logits[0, -1] / 0.8
        likely = logits.masked_fill(logits < logits.topk(6)[0][-1], -torch.inf).softmax(-1)
        of = said[said[:, 0] == before, 1]
        got, want = torch.bincount(of, minlength=8), likely * len(of)
        assert got[likely == 0].sum() == 0
        seen = want >= 5  # where the statistic's distribution is known
        if seen.sum() > 1:
            drawn += len(of)
            assert float(((got - want)[seen] ** 2 / want[seen]).sum()) < 36  # of five degrees: one in a million
    assert drawn > rows / 2


def apart(ours, theirs, words=8):
    """Pearson's statistic of two counts of the same size being of one distribution, rare words together."""
    counts = torch.stack([torch.bincount(said.flatten(), minlength=words) for said in (ours, theirs)]).double()
    both = counts.sum(0)
    rare = both < 10
    counts = torch.cat([counts[:, ~rare], counts[:, rare].sum(1, keepdim=True)], 1)
    return float(((counts[0] - counts[1]) ** 2 / counts.sum(0).clamp_min(1)).sum())


def test_sixty_four_runs_are_drawn_as_transformers_draws():
    """By chi-square, token by token; of seven degrees at most, one in a million. Another temperature would be seen."""
    model = tiny.model("qwen3", vocab_size=8, pad_token_id=None, bos_token_id=None, eos_token_id=None).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(30)  # some words more likely than others
    prompt = torch.tensor([[1, 2, 3]]).expand(32, -1)

    def runs(say, seed, count, **more):
        said = []
        for run in range(count):
            torch.manual_seed(1000 * seed + run)
            said.append(say(model, prompt, **{**OPTIONS, "do_sample": True, "temperature": 0.9, "top_k": 7, "max_new_tokens": 4, **more})[:, 3:])
        return torch.cat(said)

    theirs, ours = runs(stock, 1, 64), runs(hotswap.generate, 2, 64)
    hotter = runs(hotswap.generate, 3, 16, temperature=2.0)
    assert len(ours) == 64 * 32
    assert max(apart(ours[:, i], theirs[:, i]) for i in range(4)) < 40.5
    assert max(apart(hotter[:, i], theirs[: len(hotter), i]) for i in range(4)) > 40.5


@pytest.mark.skipif(not ON_GPU, reason="no GPU: HOTSWAP_TEST_DEVICE=cuda asks for it")
@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("padded", [False, True])
def test_a_captured_step_at_every_length(monkeypatch, rows, padded):
    """From a prompt of two tokens to keys by the hundred: one graph, and at each length the bits of the step itself. Sampled, so that
    no text goes round in a circle that would hide what is stale."""
    model = tiny.model("qwen3", head_dim=64, hidden_size=64, vocab_size=512, max_position_embeddings=2048).to(torch.bfloat16).eval()
    prompt = torch.arange(2 * rows).view(rows, 2) + 5
    more = dict(attention_mask=torch.ones_like(prompt))
    if padded:
        more["attention_mask"][-1, 0] = 0
    sampled = dict(do_sample=True, temperature=2.0, top_k=0, max_new_tokens=700)
    # A mask is the business of the layers' parts. What torch takes for attention by itself gives other bits now and then, uncaptured too.
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION) if padded else contextlib.nullcontext():
        said = captured_and_not(monkeypatch, 7, not padded, model, prompt, **sampled, **more)
    assert len(said.unique()) > 300


@pytest.mark.skipif(not ON_GPU, reason="no GPU: HOTSWAP_TEST_DEVICE=cuda asks for it")
def test_the_first_replay_draws_what_a_step_draws_however_late_the_capture(monkeypatch):
    """torch puts random numbers' state back on the stream that captures; on a GPU that others share it came behind the replay."""
    model = tiny.model("qwen3", head_dim=64, hidden_size=64).to(torch.bfloat16).eval()

    class Late(generation._Graph):
        def capture(self):
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(200_000_000)  # a tenth of a second
            super().capture()

    def said():
        torch.manual_seed(5)
        return hotswap.generate(model, PROMPT, **{**OPTIONS, "do_sample": True, "top_k": 20})

    want = said()
    monkeypatch.setattr(generation, "_Graph", Late)
    assert torch.equal(said(), want)


def test_padded_rows():
    model = model_of("llama")
    ids, mask = PROMPT.clone(), torch.ones_like(PROMPT)
    ids[1, :2], mask[1, :2] = 0, 0
    assert torch.equal(hotswap.generate(model, ids, attention_mask=mask, **OPTIONS), stock(model, ids, attention_mask=mask))


def test_rows_end_at_their_own_end_token():
    model = model_of("llama")
    free = stock(model, PROMPT)
    options = dict(eos_token_id=[int(free[0, 6]), int(free[1, 9])], pad_token_id=33)
    want = stock(model, PROMPT, **options)
    assert torch.equal(hotswap.generate(model, PROMPT, **{**OPTIONS, **options}), want)
    one = dict(eos_token_id=int(free[0, 6]))
    assert torch.equal(hotswap.generate(model, PROMPT[:1], **{**OPTIONS, **one}), stock(model, PROMPT[:1], **one))


class _Late(StoppingCriteria):
    """The rows from `first` on, at a length."""

    def __init__(self, length, first=0):
        self.length, self.first = length, first

    def __call__(self, ids, scores, **kwargs):
        assert scores is None, "as transformers calls it"
        return (torch.arange(ids.shape[0], device=ids.device) >= self.first) & (ids.shape[1] >= self.length)


def test_criteria_are_asked_at_every_step():
    model = model_of("llama")
    got = hotswap.generate(model, PROMPT, stopping_criteria=StoppingCriteriaList([_Late(9)]), **OPTIONS)
    assert torch.equal(got, stock(model, PROMPT)[:, :9])
    for options in ({}, dict(eos_token_id=96, pad_token_id=33)):  # one row ends; it is padded where there is an end token
        options["stopping_criteria"] = StoppingCriteriaList([_Late(9, first=1)])
        assert torch.equal(hotswap.generate(model, PROMPT, **{**OPTIONS, **options}), stock(model, PROMPT, **options))


def letters():
    """A token each for 62 letters and digits, and 35 of two letters."""
    names = string.ascii_letters + string.digits
    pairs = [names[i] + names[i + 1] for i in range(35)]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({name: i for i, name in enumerate([*names, *pairs])}, []))
    made.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("options", [{}, dict(eos_token_id=96, pad_token_id=33), dict(repetition_penalty=1.2)], ids=str)
def test_stop_strings_are_those_of_transformers(options):
    """Within a token, across tokens, and in one row alone: without an end token the row that stopped goes on until all have."""
    model, tokenizer = model_of("llama"), letters()
    free = stock(model, PROMPT, **options)
    first, second = (tokenizer.decode(row[4:]) for row in free)
    lengths = set()
    for strings in ([first[2:5]], [first[3:6], second[6:9]], first[4], "never said"):
        asked = {**options, "stop_strings": strings, "tokenizer": tokenizer}
        for ids in (PROMPT, PROMPT[:1]):
            got = hotswap.generate(model, ids, **{**OPTIONS, **asked})
            assert torch.equal(got, stock(model, ids, **asked)), strings
            lengths.add(got.shape[1])
    assert len(lengths) > 2, "some stop early"


def test_stop_strings_of_the_models_own_settings_and_of_the_callers_criterion():
    model, tokenizer = model_of("llama"), letters()
    text = tokenizer.decode(stock(model, PROMPT[:1])[0, 4:])
    want = stock(model, PROMPT[:1], stop_strings=text[2:5], tokenizer=tokenizer)
    assert want.shape[1] < 4 + OPTIONS["max_new_tokens"]
    own = StoppingCriteriaList([StopStringCriteria(tokenizer, text[2:5])])
    later = dict(stop_strings=text[7:10], tokenizer=tokenizer, stopping_criteria=own)  # the criterion comes first
    assert torch.equal(stock(model, PROMPT[:1], **later), want)
    assert torch.equal(hotswap.generate(model, PROMPT[:1], **OPTIONS, **later), want)
    model.generation_config.stop_strings = [text[2:5]]
    assert torch.equal(hotswap.generate(model, PROMPT[:1], tokenizer=tokenizer, **OPTIONS), want)
    with pytest.raises(ValueError, match="hotswap.generate: expected a tokenizer .* give tokenizer="):
        hotswap.generate(model, PROMPT[:1], **OPTIONS)
    assert torch.equal(hotswap.generate(model, PROMPT[:1], stop_strings=None, **OPTIONS), stock(model, PROMPT[:1], stop_strings=None))
    model.generation_config.stop_strings = None
    got = model.generate(PROMPT[:1], custom_generate=hotswap.captured_generate, cache_implementation="static",
                         stopping_criteria=own, **OPTIONS)  # fmt: skip
    assert torch.equal(got, want)


def test_lengths_and_end_tokens_may_be_criteria_of_ones_own():
    """They take the place of the settings: an end token of the settings is then none."""
    model = model_of("llama")
    free = stock(model, PROMPT)
    ends = EosTokenCriteria(int(free[0, 6]))
    for criteria, options in (
        ([MaxLengthCriteria(7)], {}),
        ([MaxLengthCriteria(3)], {}),  # one token there is always
        ([ends], {}),
        ([ends, MaxLengthCriteria(9)], dict(repetition_penalty=1.01)),
        ([ends], dict(eos_token_id=int(free[1, 5]))),
        ([EosTokenCriteria([int(free[0, 6]), int(free[1, 8])]), _Late(14)], {}),
    ):
        asked = {**options, "stopping_criteria": StoppingCriteriaList(criteria)}
        want = stock(model, PROMPT, **asked)
        assert not torch.equal(want, free)
        assert torch.equal(hotswap.generate(model, PROMPT, **{**OPTIONS, **asked}), want), (criteria, options)
    with pytest.raises(ValueError, match="max_length=30 of MaxLengthCriteria; got max_length=16"):
        hotswap.generate(model, PROMPT, stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(30)]), **OPTIONS)
    with pytest.raises(ValueError, match="give pad_token_id"):
        hotswap.generate(model, PROMPT, stopping_criteria=StoppingCriteriaList([ends]), **{**OPTIONS, "pad_token_id": None})


def test_by_the_name_of_custom_generate():
    model = model_of("qwen3")
    options = {**OPTIONS, "return_dict_in_generate": True}
    got = model.generate(PROMPT, custom_generate=hotswap.captured_generate, cache_implementation="static", **options)
    assert torch.equal(got.sequences, stock(model, PROMPT))


def test_one_token_and_two():
    model = model_of("llama")
    for count in (1, 2):
        assert torch.equal(hotswap.generate(model, PROMPT, **{**OPTIONS, "max_new_tokens": count}), stock(model, PROMPT)[:, : 4 + count])


def max_rows(model):
    return package("decode").module.decoder_layer_rows(*decode.Parts(decode.layers_of(model)[0]).weights)


@pytest.mark.skipif(ON_GPU, reason="there the op has none of this model's float32, and no heads so narrow")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_beyond_what_the_op_serves_go_by_the_layers_parts(dtype):
    model = model_of("llama").to(dtype)
    most = max_rows(model)
    assert most == 16 or dtype == torch.bfloat16
    for rows in (most, most + 1):
        ids, before = torch.arange(rows)[:, None] + torch.arange(1, 4), calls()
        got, ran = hotswap.generate(model, ids, **OPTIONS), calls() - before
        assert (ran > 0) == (rows == most), rows
        if dtype == torch.float32:  # two logits of bfloat16 may be equal
            assert torch.equal(got, stock(model, ids))
    bound = decode.WholeLayers(model, most + 1)
    assert not bound.places
    assert list(bound.why) == [f"the batch has {most + 1} rows, and with these weights the op serves {most}"]


def test_weights_that_the_op_refuses_are_asked_before():
    model = tiny.model("llama").eval()
    model.model.layers[1].mlp.up_proj.to(torch.float64)
    bound = decode.WholeLayers(model)
    assert "layers.1" in bound.why["the batch has 1 rows, and with these weights the op serves 0"]


@pytest.mark.skipif(not ON_GPU, reason="no GPU: HOTSWAP_TEST_DEVICE=cuda asks for it")
def test_wide_layers_take_fewer_rows_on_a_gpu():
    model = tiny.model("llama", hidden_size=5120, num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=64)
    model = model.to(torch.bfloat16).eval()
    assert max_rows(model) == 8
    for rows in (8, 9):
        ids, before = torch.arange(rows)[:, None] + torch.arange(1, 4), calls()
        assert hotswap.generate(model, ids, **OPTIONS).shape == (rows, 3 + OPTIONS["max_new_tokens"])
        assert (calls() > before) == (rows == 8), rows


@pytest.mark.parametrize("options, words", [
    (dict(num_beams=2), "num_beams=2"),
    (dict(cache_implementation="dynamic"), "a cache of"),
    (dict(output_scores=True, return_dict_in_generate=True), "output_scores"),
    (dict(output_logits=True, return_dict_in_generate=True), "output_logits"),
    (dict(output_hidden_states=True, return_dict_in_generate=True), "output_hidden_states"),
    (dict(prefill_chunk_size=2), "prefill_chunk_size=2"),
    (dict(use_cache=False), "use_cache=False"),
    (dict(prompt_lookup_num_tokens=2), "assisted_generation"),
    (dict(penalty_alpha=0.6, top_k=4), "contrastive_search"),
    (dict(dola_layers="low"), "dola_generation"),
    (dict(guidance_scale=1.5), "guidance_scale=1.5"),
    (dict(assistant_model="another"), "assistant_model"),
    (dict(synced_gpus=True), "synced_gpus"),
    (dict(custom_generate="org/loop"), "custom_generate"),
    (dict(token_healing=True), "model.heal_tokens"),
    (dict(stop_strings="a"), "give tokenizer="),
])  # fmt: skip
def test_what_it_does_not_do_it_says(options, words):
    with pytest.raises(ValueError, match=words):
        hotswap.generate(model_of("llama"), PROMPT, **{**OPTIONS, **options})


def test_layers_with_a_window_are_refused():
    with pytest.raises(ValueError, match="StaticSlidingWindowLayer"):
        hotswap.generate(model_of("mistral"), PROMPT, **OPTIONS)
