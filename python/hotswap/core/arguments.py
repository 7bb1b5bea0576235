"""What the public functions may be given: a TypeError before anything is done names what was expected, what came and what to do."""

import functools
import inspect
from typing import Callable, NamedTuple

import torch
from torch import nn


class Kind(NamedTuple):
    expected: str
    fits: Callable
    next: str


def _is(*types):
    return lambda value: isinstance(value, types)


def _or_none(kind: Kind) -> Kind:
    return Kind(f"{kind.expected} or None", lambda value: value is None or kind.fits(value), kind.next)


MODEL = Kind("a torch.nn.Module", _is(nn.Module), "load the model first, as by AutoModelForCausalLM.from_pretrained")
GENERATING = Kind("a model of transformers with generate()", lambda m: hasattr(m, "generate") and hasattr(m, "config"), MODEL.next)
FLAG = Kind("True or False", _is(bool), "pass one of these")
TEXT = Kind("a text that is not empty", lambda value: isinstance(value, str) and value != "", "pass a name")
IDS = Kind("a tensor of token ids, [batch, time]", _is(torch.Tensor), "pass tokenizer(text, return_tensors='pt').input_ids")
LIST = Kind("a list", _is(list), "pass transformers' own, or an empty one")
STREAMER = Kind("a streamer, with put() and end()", lambda s: hasattr(s, "put") and hasattr(s, "end"), "pass a TextStreamer")
TOKENIZER = Kind("a tokenizer", callable, "pass the model's own, by AutoTokenizer.from_pretrained")
CONFIG = Kind("a GenerationConfig", lambda c: hasattr(c, "get_generation_mode"), "pass model.generation_config")
MODEL_OR_NONE, FLAG_OR_NONE, IDS_OR_NONE, LIST_OR_NONE = map(_or_none, (MODEL, FLAG, IDS, LIST))
STREAMER_OR_NONE, TOKENIZER_OR_NONE = _or_none(STREAMER), _or_none(TOKENIZER)


def check(function: str, name: str, value, kind: Kind) -> None:
    if not kind.fits(value):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise TypeError(f"{function}: expected {name} as {kind.expected}; got {shown} ({type(value).__name__}); {kind.next}")


def checked(**kinds: Kind):
    """A function whose arguments of these names are looked at before it is called."""

    def wrap(function):
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def checking(*args, **kwargs):
            for name, value in (*zip(names, args), *kwargs.items()):
                if name in kinds:
                    check(function.__name__, name, value, kinds[name])
            return function(*args, **kwargs)

        return checking

    return wrap


def check_accum_dtype(dtype) -> bool:
    """Whether the weight's gradient is to be summed in float32."""
    if dtype not in (None, torch.float32):
        raise NotImplementedError(
            f"accum_dtype: expected float32, or None for the weight's own; got {dtype}; there is no such sum; leave it out"
        )
    return dtype is torch.float32
