"""Every matcher, and what they find."""

from typing import NamedTuple

from torch import nn

from hotswap.core.mapping import ATTENTION
from hotswap.core.matcher import Matcher
from hotswap.core.replacement import Replacement
from hotswap.matchers import causal_lm, documents, frequencies
from hotswap.matchers.activation import Activation
from hotswap.matchers.causal_lm import CausalLmLoss
from hotswap.matchers.deformable import Deformable
from hotswap.matchers.experts import Experts
from hotswap.matchers.linear import Linear
from hotswap.matchers.lora import Lora
from hotswap.matchers.mixers import Mixers
from hotswap.matchers.mlp import GatedMlp, NamedMlp
from hotswap.matchers.norm import LayerNorm, RmsNorm
from hotswap.matchers.residual import AddRmsNorm
from hotswap.matchers.rotary import Rotary

MATCHERS = (  # the first that finds something has the module
    RmsNorm(), LayerNorm(), GatedMlp(), NamedMlp(), Experts(), Rotary(), Deformable(), Mixers(), AddRmsNorm(),
    Activation(), Lora(), Linear(), CausalLmLoss(),
)  # fmt: skip
# kernelize()'s switches: name -> is it on by default. The attention is not a module's but a config's: attention.py.
OPTIONS = {name: on for matcher in MATCHERS for name, on in matcher.options.items()} | {ATTENTION: False}
AROUND = (documents.replacement_of, frequencies.replacement_of)  # what modules around a match, or beside one, must run with it


class Match(NamedTuple):
    matcher: Matcher
    replacements: list  # of ours that compute the same; a model's head has two that exclude each other
    looks: str = ""  # the layer that it looks like


def match(module: nn.Module) -> Match:
    """Which matcher serves this module, and by what."""
    for matcher in MATCHERS:
        if found := matcher.match(module):
            return Match(matcher, found)
    for matcher in MATCHERS:
        if looks := matcher.serves(module):
            return Match(matcher, [], looks)
    return Match(Matcher(), [])


def matches(module: nn.Module) -> list[Replacement]:
    """What may be bound to this module."""
    return next((found for matcher in MATCHERS if (found := matcher.match(module))), [])


def all_for(module: nn.Module) -> list[Replacement]:
    """What this module may have been bound to, with its model or for itself."""
    around = [found for of in AROUND if (found := of(module)) is not None]
    return [*matches(module), *causal_lm.heads(module), *around]
