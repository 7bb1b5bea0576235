"""q, k and v of an attention, whose input's gradients meet in their products (kernels/mlp/torch-ext/mlp/linked.py), for training on
a GPU. Whatever is more than a plain nn.Linear there is called as ever, and the report says so."""

import functools
from typing import Callable

import torch

from hotswap.core.packages import load
from hotswap.core.replacement import Replacement

NAMES = ("q_proj", "k_proj", "v_proj")
ADD_NORM = "AddRMSNorm"  # a decoder layer whose norms take the residual with them (residual.py)


@functools.lru_cache(maxsize=None)
def _package():  # asked for by a forward: `import hotswap` loads no package
    return load("mlp").linked


def trains(x) -> bool:
    """Will a gradient be asked for here, of plain numbers on a device where these ways were measured?"""
    return not torch.compiler.is_compiling() and _package().trains(x)


class _Link:
    """A projection, called by an attention that `linked` made."""

    def __init__(self, chain, linear):
        self.chain, self.linear = chain, linear

    def __call__(self, x, *args, **kwargs):
        if args or kwargs:  # more than a plain nn.Linear takes (Moshi's choose weights by the codebook)
            return self.linear(x, *args, **kwargs)
        return self.chain(self.linear, x)

    def __getattr__(self, name):
        return getattr(self.linear, name)


@functools.lru_cache(maxsize=None)
def _class_with_links(attention_class: type) -> type:
    def link(name):
        return property(lambda self: _Link(self._chain, self._modules[name]))

    return type(attention_class.__name__, (attention_class,), {"__slots__": ("_chain",)} | {n: link(n) for n in NAMES})


def linked(attention):
    """The same module, for one forward: all that it holds, and projections that hand their input on."""
    made = object.__new__(_class_with_links(type(attention)))
    object.__setattr__(made, "__dict__", attention.__dict__)
    object.__setattr__(made, "_chain", _package().Chain())
    return made


def linking(forward: Callable) -> Callable:
    """An attention's forward, its projections linked where there is something to train."""

    @functools.wraps(forward)
    def linking_forward(self, *args, **kwargs):
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not set(NAMES) <= set(self._modules):
            return forward(self, *args, **kwargs)
        return forward(linked(self), *args, **kwargs)

    return linking_forward


# ---- for the report


def _on_such_a_device(module) -> bool:
    return any(p.device.type in _package().DEVICES for p in module.parameters())


def is_here(module, replacement: Replacement) -> bool:
    """Not so of a decoder layer elsewhere, which runs as its class says."""
    return replacement.layer != ADD_NORM or _on_such_a_device(module)


def note(module, replacement: Replacement) -> str:
    """Which projections of an attention or a gated MLP are called as ever, and why; where a way is taken at all."""
    if replacement.layer == ADD_NORM:
        return "in training"
    names = [n for n in (*NAMES, "gate_proj", "up_proj", "down_proj") if n in module._modules]
    if replacement.option not in ("mlp", "rope") or not names or not _on_such_a_device(module):
        return ""
    found = [f"{name} has {why}" for name in names if (why := _package().why_not(module._modules[name]))]
    return f"{', '.join(found)}: its products are autograd's own" if found else ""
