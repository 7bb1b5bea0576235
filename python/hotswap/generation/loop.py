"""generate(): transformers' generate with a loop of ours, for models with a static cache. On a GPU a step, sampling and all, is one
CUDA graph, and the host looks at a step's tokens while the next one runs. Elsewhere the same loop runs step by step.

    out = hotswap.generate(model, input_ids, max_new_tokens=100)
    out = model.generate(input_ids, custom_generate=hotswap.captured_generate, cache_implementation="static")

Arguments mean what they mean there; a ValueError says what this loop does not do.
"""

import contextlib
import copy
import functools
import gc
import threading
import warnings

import torch
from transformers import DynamicCache, GenerationMixin

from hotswap.core.arguments import CONFIG, FLAG, GENERATING, IDS, IDS_OR_NONE, LIST, STREAMER_OR_NONE, TOKENIZER_OR_NONE, checked
from hotswap.core.chosen import whole_layers_off
from hotswap.core.packages import load
from hotswap.core.replacement import cache_name
from hotswap.core.switch import enabled
from hotswap.core.view import view
from hotswap.generation import decode
from hotswap.generation.checks import check_class, check_request, refuse, static_cache

# Processors that look at nothing but the scores, and never wait: they go into the graph.
_OF_SCORES = {"TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper",
              "EpsilonLogitsWarper", "EtaLogitsWarper", "TopHLogitsWarper"}  # fmt: skip

# Rows x tokens^2 of a prompt from which cuDNN's attention gains more over torch's flash kernel than its plan takes (H200, 16 heads of 128).
_PLANS_PAY = 1 << 27


@checked(model=GENERATING, input_ids=IDS_OR_NONE, streamer=STREAMER_OR_NONE, tokenizer=TOKENIZER_OR_NONE)
def generate(model, input_ids=None, streamer=None, tokenizer=None, **kwargs):
    """model.generate() by the loop of this module. `streamer`, `tokenizer` and all other arguments are its own. input_ids: int64
    [batch, time]; gives int64 [batch, time of the longest]. TypeError for arguments of another kind, ValueError for what this loop
    does not do."""
    loop = captured_generate
    given = any(kwargs.get(name) is not None for name in ("past_key_values", "cache"))  # 5.24 takes both names
    if not given and kwargs.get("cache_implementation", "static") == "static":
        kwargs["cache_implementation"] = "dynamic"  # of no memory yet: transformers keeps the length of a static one on the model
        loop = functools.partial(captured_generate, hotswap_cache=True)
    for name in ("assistant_model", "synced_gpus"):  # which transformers keeps from a callable, so that nobody would miss them
        if kwargs.get(name):
            refuse("one model on one device", f"{name}", "leave it out, or call model.generate")
    if kwargs.get("custom_generate") is not None:
        refuse("the loop of this function", "custom_generate", "leave it out, or call model.generate")
    if _asked(model, kwargs, "token_healing"):
        refuse("a prompt as it is", "token_healing", "give what model.heal_tokens(input_ids, tokenizer) makes of it")
    if (strings := _asked(model, kwargs, "stop_strings")) is not None:
        _stop_at(strings, tokenizer, kwargs)
    if input_ids is None:
        input_ids = kwargs.pop("inputs", None)
    return model.generate(input_ids, custom_generate=loop, hotswap_streamer=streamer, **kwargs)


def _asked(model, kwargs, name):
    """What transformers will take for this setting."""
    if name in kwargs:
        return kwargs[name]
    for config in (kwargs.get("generation_config"), model.generation_config):
        if (value := getattr(config, name, None)) is not None:
            return value
    return None


def _stop_at(strings, tokenizer, kwargs):
    """transformers makes this criterion of `tokenizer`, which it too keeps from a callable: so it is made here."""
    from transformers import StoppingCriteriaList, StopStringCriteria

    if tokenizer is None:
        refuse("a tokenizer beside stop_strings", f"stop_strings={strings!r} alone", "give tokenizer=, the model's own")
    criteria = kwargs.get("stopping_criteria") or []
    if not any(isinstance(c, StopStringCriteria) for c in criteria):  # the caller's own comes first there, too
        kwargs["stopping_criteria"] = StoppingCriteriaList([*criteria, StopStringCriteria(tokenizer, strings)])
    kwargs["stop_strings"] = None


class _Step:
    """The forward of one token of each row, in memory that does not move, and the choice of the next one."""

    def __init__(self, model, inputs, padding, capacity, choose, whole):
        """whole: decode.WholeLayers, or None where the model is to run as it is."""
        self.model, self.choose, self.capacity, self.whole = model if whole is None else whole.model, choose, capacity, whole
        self.said_here = self.said_there = self.steps = None
        self.tokens = inputs["input_ids"].clone()  # [batch, 1]
        self.positions = inputs["position_ids"].clone() if inputs.get("position_ids") is not None else None
        self.padding = padding  # [batch, capacity] bool
        self.cache = inputs[cache_name(model.forward)]
        given = inputs.get("attention_mask")
        some = next(iter(given.values()), None) if isinstance(given, dict) else given
        self.kinds = list(given) if isinstance(given, dict) else None
        # Our attention's own description has a length of the host's in it; it takes a tensor of what is seen as well.
        self.mask_type = some.dtype if isinstance(some, torch.Tensor) else torch.bool
        self.flat_mask = model.config.model_type == "bloom"  # which makes its positions of a mask of [batch, capacity]
        fixed = ("input_ids", "position_ids", "attention_mask")
        self.rest = {name: value for name, value in inputs.items() if name not in fixed}
        if choose is not None and self.tokens.is_cuda:
            # [steps, batch] of the host, which the device writes to as well. A copy between two graphs would keep the device waiting.
            self.said_here = torch.empty(capacity, len(self.tokens), dtype=torch.int64, device="cpu", pin_memory=True)
            self.said_there = torch.as_tensor(_Seen(self.said_here), device=self.tokens.device)
            self.steps = self.tokens.new_zeros(1)
        # The greedy choice by one launch, where the next step looks for it.
        by_op = choose is _best and enabled() and model.dtype != torch.float64
        self.largest = load("linear").largest_ if by_op else None
        self.unread = None  # a mask, once a step has shown that no layer reads it

    def mask(self):
        """Of the keys that there are by now and the new one: [batch, 1, 1, capacity], or [batch, capacity] where the class takes that."""
        place = torch.arange(self.capacity, device=self.tokens.device)
        seen = (place <= self.cache.layers[0].cumulative_length) & self.padding
        if self.flat_mask:
            return seen.long()
        seen = seen[:, None, None, :]
        if self.mask_type != torch.bool:
            low = torch.finfo(self.mask_type).min
            seen = torch.zeros(seen.shape, dtype=self.mask_type, device=seen.device).masked_fill_(~seen, low)
        return self.by_kind(seen)

    def by_kind(self, mask):
        return mask if self.kinds is None else dict.fromkeys(self.kinds, mask)

    def __call__(self):
        """The tokens before become those after; gives the logits where somebody else is to choose."""
        inputs = dict(self.rest, input_ids=self.tokens, attention_mask=self.mask() if self.unread is None else self.unread)
        if self.positions is not None:
            inputs["position_ids"] = self.positions
        logits = self.model(**inputs, return_dict=True).logits[:, -1]
        if self.choose is not _best:  # rounding to float32 keeps the order
            logits = logits.float()
        if self.whole is not None and self.whole.count(self.cache) == len(self.cache.layers) and self.unread is None:
            shape = (len(self.padding), 1, 1, self.capacity)  # whole layers see the keys up to their position
            self.unread = self.by_kind(torch.ones(shape, dtype=self.mask_type, device=self.padding.device))
        if self.positions is not None:
            self.positions.add_(1)
        if self.choose is not None:
            if self.largest is not None:
                self.largest(self.tokens, logits, self.said_there, self.steps)
            else:
                self.tokens.copy_(self.choose(None, logits)[:, None])
                if self.said_there is not None:
                    self.said_there.index_copy_(0, self.steps, self.tokens.view(1, -1))
            if self.steps is not None:
                self.steps.add_(1)
        return logits


class _Seen:
    """Pinned memory of the host as a GPU has it, at the same address."""

    def __init__(self, of):
        self.of = of  # for as long as somebody looks at it
        shape, data = tuple(of.shape), (of.data_ptr(), False)
        self.__cuda_array_interface__ = dict(version=2, typestr="<i8", shape=shape, data=data)


_COLLECTOR = decode._Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable())
_RANDOM = threading.RLock()  # the random numbers of a GPU: no thread may draw any while another one captures a graph that does


class _Graph:
    """A step, captured; the first call warms up, on the stream that captures."""

    def __init__(self, step):
        self.step, self.graph, self.logits = step, None, None
        self.stream = torch.cuda.Stream()

    def capture(self):
        """As torch.cuda.graph(), which looks for garbage and gives all unused memory back first: a fifth of a second."""
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        # The collector may free what is no business of a capture.
        with _RANDOM, _COLLECTOR.off(), torch.cuda.stream(self.stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.logits = self.step()
            finally:
                graph.capture_end()
        # torch prepares random numbers on this stream, and a replay overwrites that on the other.
        torch.cuda.current_stream().wait_stream(self.stream)
        self.graph = graph

    def __call__(self):
        if self.logits is None:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.logits = self.step()
            torch.cuda.current_stream().wait_stream(self.stream)
            return self.logits
        if self.graph is None:
            self.capture()
        self.graph.replay()
        return self.logits


class _Reader:
    """Tokens on their way to the host, first in, first out."""

    def __init__(self, device):
        self.cuda, self.waiting = device.type == "cuda", []

    def push(self, tokens, here=None):
        """here: where they are in the host's memory once the device has made them; None: they are copied."""
        if not self.cuda:
            return self.waiting.append((tokens.clone(), None))
        if here is None:
            here = torch.empty(tokens.shape, dtype=tokens.dtype, device="cpu", pin_memory=True).copy_(tokens, non_blocking=True)
        come = torch.cuda.Event()
        come.record()
        self.waiting.append((here, come))

    def pop(self):
        here, come = self.waiting.pop(0)
        if come is not None:
            come.synchronize()
        return here


def _begun(cache):
    return any(layer.is_initialized for layer in cache.layers)


def _behind(cache, input_ids, given, config):
    """How many tokens stand behind those that the cache has: as transformers, which gets all of them, or with a mask of all the new ones."""
    if not _begun(cache):
        return None
    if (embeds := given.get("inputs_embeds")) is not None:
        return embeds.shape[1] - int(cache.get_seq_length())
    mask = given.get("attention_mask")  # 5.24 keeps but the length of one that hides nothing
    length = getattr(config, "_mask_length", -1) if mask is None else mask.shape[1]
    return input_ids.shape[1] - int(cache.get_seq_length()) if length == input_ids.shape[1] else None


def _own_keys(cache, inputs):
    """The cache for a prompt. A whole prompt of which nothing is hidden looks at its own keys, as in a cache that grows, and not at all of
    the cache's memory: torch's flash kernel wants as many keys as queries."""
    mask = inputs.get("attention_mask")
    if _begun(cache) or any(m is not None for m in (mask.values() if isinstance(mask, dict) else [mask])):
        return cache
    made = copy.copy(cache)
    sizes = lambda queries: (queries, 0)  # of a mask that the model makes all the same
    made.layers = [view(layer, update=functools.partial(_written, layer.update), get_mask_sizes=sizes) for layer in cache.layers]
    return made


def _written(update, keys, values, *args, **kwargs):
    update(keys, values, *args, **kwargs)
    return keys, values


def _best(ids, scores):
    return scores.argmax(-1)


def _chooser(processors, sample):
    """ids, float32 scores -> the next tokens, [batch]"""

    if not processors and not sample:
        return _best

    def choose(ids, scores):
        scores = processors(ids, scores)
        if not sample:
            return scores.argmax(-1)
        with _RANDOM if scores.is_cuda else contextlib.nullcontext():
            return torch.multinomial(scores.softmax(-1), 1).squeeze(1)

    return choose


def _on_its_gpu(loop):
    """The GPU of input_ids is the current one meanwhile: torch makes streams, graphs and events for whichever is current."""

    @functools.wraps(loop)
    def run(model, input_ids, *args, **kwargs):
        with torch.cuda.device(input_ids.device) if input_ids.is_cuda else contextlib.nullcontext():
            return loop(model, input_ids, *args, **kwargs)

    return run


def _restart(model, input_ids, capacity, cache, given):
    """The length of input from which on the class computes all of it again, by the frequencies for long texts (Phi-3's longrope), or
    None where the prompt is that long already, or no text may become so."""
    original = getattr(model.config, "original_max_position_embeddings", None)
    rope = getattr(model.config, "rope_parameters", None) or {}
    own = type(model).prepare_inputs_for_generation is not GenerationMixin.prepare_inputs_for_generation
    if original is None or rope.get("rope_type") != "longrope" or not own or not input_ids.shape[1] <= original < capacity:
        return None
    if _begun(cache) or given.get("inputs_embeds") is not None:
        refuse(f"ids alone of a text that may grow beyond original_max_position_embeddings={original}",
                "inputs_embeds, or a cache that has the beginning", "give input_ids, or a smaller max_new_tokens")  # fmt: skip
    return original + 1


def _captures(model) -> bool:
    """Are the steps of this model one CUDA graph? Why not is a warning, and a line of the report."""
    if why := decode.why_not_captured(model):
        warnings.warn(f"hotswap.generate: steps are not captured in a CUDA graph: {why}", stacklevel=2)
    return not why


def _of_all(model, cache, ids, model_kwargs):
    """model_kwargs of a prompt of all ids, with the cache empty again."""
    cache.reset()
    kwargs = dict(model_kwargs)
    if (mask := kwargs.get("attention_mask")) is not None:
        kwargs["attention_mask"] = torch.cat([mask, mask.new_ones(len(ids), ids.shape[1] - mask.shape[1])], 1)
    if kwargs.pop("position_ids", None) is not None:
        kwargs["position_ids"] = model._prepare_position_ids_for_generation(ids, kwargs)
    return kwargs


def _static_cache(model, generation_config, more):
    """A static cache with room for max_length tokens, and for `more`."""
    room = max(generation_config.max_length - 1 + more, getattr(generation_config, "max_cache_len", None) or 0)
    return static_cache(model, room)


@checked(
    model=GENERATING, input_ids=IDS, logits_processor=LIST, stopping_criteria=LIST, generation_config=CONFIG,
    hotswap_streamer=STREAMER_OR_NONE, hotswap_cache=FLAG,
)  # fmt: skip
@torch.no_grad()
@_on_its_gpu
def captured_generate(
    model, input_ids, logits_processor, stopping_criteria, generation_config, hotswap_streamer=None, hotswap_cache=False, **model_kwargs
):
    """For model.generate(custom_generate=...), which keeps no `streamer` and no `tokenizer` for a callable: give the one as
    hotswap_streamer, and instead of stop_strings a StopStringCriteria. hotswap_cache: a static cache of this call's length is made
    instead of a DynamicCache."""
    name = cache_name(model.forward)
    if hotswap_cache and isinstance(model_kwargs.get(name), DynamicCache):
        check_class(model)
        embeds = model_kwargs.get("inputs_embeds")
        model_kwargs[name] = _static_cache(model, generation_config, 0 if embeds is None else embeds.shape[1] - input_ids.shape[1])
    cache = model_kwargs.get(name)
    check_request(model, generation_config, cache)
    choose = _chooser(logits_processor, generation_config.do_sample)
    restart = _restart(model, input_ids, cache.layers[0].max_cache_len + 1, cache, model_kwargs)
    new = _behind(cache, input_ids, model_kwargs, generation_config)
    loop = _Loop(generation_config, stopping_criteria, hotswap_streamer, input_ids)
    embeds = model_kwargs.get("inputs_embeds")
    prompt = input_ids.shape[1] if embeds is None else embeds.shape[1]
    if (needed := prompt + loop.longest - 1) > (room := cache.layers[0].max_cache_len):  # a GPU would write beyond its memory
        refuse(f"a static cache of {needed} tokens", f"max_cache_len={room}", "make a larger one, or give a smaller max_new_tokens")
    # What wants the ids, or stops by anything but length and an end token, is asked by the host at every step.
    in_graph = loop.plain and all(type(p).__name__ in _OF_SCORES for p in logits_processor)

    loop.run_until(restart)
    ids = _continued(model, input_ids, cache, loop, choose, in_graph, new, model_kwargs)
    if restart is not None and loop.run_until(None):
        ids = _continued(model, ids, cache, loop, choose, in_graph, None, _of_all(model, cache, ids, model_kwargs))
    if hotswap_streamer is not None:
        hotswap_streamer.end()
    if generation_config.return_dict_in_generate:
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=ids, **{name: cache})
    return ids


def _continued(model, input_ids, cache, loop, choose, in_graph, new, model_kwargs):
    """The ids, and behind them what the loop says up to its end. new: how many of the ids the cache lacks; None: all."""
    name = cache_name(model.forward)
    batch, cuda = input_ids.shape[0], input_ids.device.type == "cuda"
    capacity = cache.layers[0].max_cache_len
    padding = torch.ones(batch, capacity, dtype=torch.bool, device=input_ids.device)
    if (mask := model_kwargs.get("attention_mask")) is not None:
        padding[:, : mask.shape[1]] = mask.bool()
    all_seen = bool(padding.all())  # asked here: behind the prompt the host would wait for it

    inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=new, is_first_iteration=True, **model_kwargs)
    long = batch * (input_ids if mask is None else mask).shape[1] ** 2 >= _PLANS_PAY
    with contextlib.nullcontext() if long else decode.torch_without_cudnn():
        outputs = model(**{**inputs, name: _own_keys(cache, inputs)}, return_dict=True)
    outputs[name] = cache
    model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder=False)
    logits = outputs.logits[:, -1].float()
    tokens = choose(input_ids, logits)
    before = len(loop.said)
    if loop.streamer is not None:
        loop.take(tokens.cpu())  # who waits for the first token has it before steps are prepared

    step = None
    if loop.goes_on and loop.most > before + 1:
        whole = decode.WholeLayers(model, batch) if all_seen and not whole_layers_off(model) else None
        ids = torch.cat([input_ids, tokens[:, None]], 1)
        inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=1, **model_kwargs)
        step = _Step(model, inputs, padding, capacity, choose if in_graph else None, whole)
    captured = cuda and step is not None and _captures(model)
    run = _Graph(step) if captured else step
    if in_graph:
        return loop.run_ahead(tokens, run, step, before, ahead=1 if captured else 0)
    return loop.run_in_turn(tokens, run, step, input_ids, choose)


class _Loop:
    """Who goes on, and what has been said."""

    def __init__(self, config, criteria, streamer, input_ids):
        from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

        self.criteria, self.streamer, self.input_ids = criteria, streamer, input_ids
        batch, prompt = input_ids.shape
        # Not by the config: a criterion of the caller's own takes the place of the config's.
        longest, self.eos, self.plain = config.max_length, set(), True
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria:
                if criterion.max_length > config.max_length:
                    refuse(f"a cache with room for max_length={criterion.max_length} of MaxLengthCriteria",
                            f"max_length={config.max_length}", "give max_length or max_new_tokens")  # fmt: skip
                longest = min(longest, criterion.max_length)
            elif type(criterion) is EosTokenCriteria:
                self.eos.update(criterion.eos_token_id.flatten().tolist())
            else:
                self.plain = False
        self.longest = longest - prompt
        # As there: without an end token a row that a criterion has ended goes on saying something until the others end.
        self.pads, self.pad = any(hasattr(c, "eos_token_id") for c in criteria), config._pad_token_tensor
        if self.pads and self.pad is None and batch > 1:
            refuse("a pad_token_id for rows that end before others", "none", "give pad_token_id")
        self.pad = 0 if self.pad is None else int(self.pad)
        self.running, self.said = [True] * batch, []  # said: [batch] on the host, a step each
        self.run_until(None)
        if streamer is not None:
            streamer.put(input_ids.cpu())

    def run_until(self, length):
        """Up to `length` tokens, those of the prompt too; None: to the end. Does any row go on?"""
        self.most = self.longest if length is None else min(self.longest, length - self.input_ids.shape[1])
        self.goes_on = any(self.running) and (len(self.said) < self.most or not self.said)  # one token there is always
        return self.goes_on

    def take(self, tokens):
        """A step's tokens, those of ended rows as padding."""
        shown = [t if goes_on or not self.pads else self.pad for t, goes_on in zip(tokens.tolist(), self.running)]
        self.said.append(torch.tensor(shown, device="cpu"))
        self.running = [goes_on and t not in self.eos for t, goes_on in zip(shown, self.running)]
        if self.streamer is not None:
            self.streamer.put(self.said[-1])
        self.goes_on = any(self.running) and len(self.said) < self.most

    def ids(self):
        return torch.cat([self.input_ids, torch.stack(self.said, 1).to(self.input_ids.device)], 1)

    def run_ahead(self, tokens, run, step, before, ahead):
        """The device chooses; a step is on its way before the tokens of the one before it are looked at. before: how many tokens there
        were before `tokens`."""
        reader, asked = _Reader(self.input_ids.device), before + 1
        if len(self.said) == before:
            reader.push(tokens)
        if step is not None:
            step.tokens.copy_(tokens[:, None])
        try:
            while self.goes_on:
                while asked < min(len(self.said) + 1 + ahead, self.most):
                    run()
                    reader.push(step.tokens[:, 0], None if step.said_here is None else step.said_here[asked - before - 1])
                    asked += 1
                self.take(reader.pop())
            return self.ids()
        finally:
            while reader.waiting:  # the step's memory is written to until then
                reader.pop()

    def run_in_turn(self, tokens, run, step, ids, choose):
        """The host asks the processors and criteria after every step. ids: those before `tokens`."""
        while True:
            if len(self.said) == ids.shape[1] - self.input_ids.shape[1]:
                self.take(tokens.cpu())
            ids = torch.cat([ids, self.said[-1].to(ids.device)[:, None]], 1)
            stopped = self.criteria(ids, None)  # as transformers, which shows scores where they are put out
            self.running = [a and not b for a, b in zip(self.running, stopped.tolist())]
            if not self.goes_on or not any(self.running):
                return self.ids()
            step.tokens.copy_(ids[:, -1:])
            tokens = choose(ids, run())
