"""Rotary embeddings whose frequencies follow the length of the text (rope types dynamic and longrope). transformers keeps those of the last
call on the module, where the next text and other threads find them; a bound one computes each call's on a copy of the module."""

import copy
import functools
from typing import Optional

import torch
from torch import nn

from hotswap.core.replacement import Replacement, class_of

_ORIGINAL = "original_inv_freq"


def follow_the_length(module: nn.Module) -> bool:
    kinds = module.__dict__.get("rope_type")  # a dictionary where kinds of layers differ
    return any("dynamic" in str(kind) or kind == "longrope" for kind in (kinds.values() if isinstance(kinds, dict) else [kinds]))


def _fresh(module: nn.Module) -> nn.Module:
    """A copy as the module was made, whose changes are its own."""
    made = copy.copy(module)
    carried, buffers = made.__dict__, dict(module._buffers)
    carried["_buffers"] = buffers
    for name in [name for name in (*buffers, *carried) if name.endswith(_ORIGINAL)]:
        buffers[name.removesuffix(_ORIGINAL) + "inv_freq"] = getattr(module, name).clone()  # 5.24 writes into it
    for name in [name for name in carried if name.endswith("max_seq_len_cached")]:
        carried[name] = carried["original_max_seq_len"]
    return made


@functools.lru_cache(maxsize=None)
def _on_a_copy(rotary_class: type) -> Replacement:
    stock = rotary_class.forward

    @functools.wraps(stock)
    def forward(self, *args, **kwargs):
        return stock(self if torch.compiler.is_compiling() else _fresh(self), *args, **kwargs)

    return Replacement("rope", "frequencies", "rotary", (), forward)


def replacement_of(module: nn.Module) -> Optional[Replacement]:
    return _on_a_copy(class_of(module)) if follow_the_length(module) else None
