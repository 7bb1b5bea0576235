"""Projections of one input: what this input's gradients are summed by. Autograd makes one tensor for each of q, k and v and adds them
up, which reads and writes each again. Here each projection also hands its input on to the next, so that backward goes through
them in turn and each product adds to what is there.

Only for training on a GPU, where it was measured; whatever is more than a plain nn.Linear there is called as ever.
"""

import functools
from typing import Callable

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hotswap.packages import load

NAMES = ("q_proj", "k_proj", "v_proj")


@functools.lru_cache(maxsize=None)
def _whole():  # asked for by a forward: `import hotswap` loads no package
    return load("mlp").whole


def trains_here(x) -> bool:
    """May a gradient be asked for here, of plain numbers on a device where these ways were measured?"""
    return not torch.compiler.is_compiling() and _whole().may_fuse(x)


class Linked(torch.autograd.Function):
    """x, weight, bias -> x @ weight^T + bias, and x for the next one."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias), x

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dx):
        if dy is None:  # nothing came of this projection
            return dx, None, None
        x, weight = ctx.saved_tensors
        _, learns, has_bias = ctx.needs_input_grad
        dy = dy.reshape(-1, dy.shape[-1])
        if dx is None:
            dx = (dy @ weight).view_as(x)
        else:  # made by the next one's backward, for nobody else
            dx.view(-1, dx.shape[-1]).addmm_(dy, weight)
        return dx, dy.t() @ x.reshape(-1, x.shape[-1]) if learns else None, dy.sum(0) if has_bias else None


class _Link:
    """A projection, called by an attention that `linked` made."""

    def __init__(self, attention, linear):
        self.attention, self.linear = attention, linear

    def __call__(self, x):
        if not _whole().may_fuse(x, self.linear) or not x.requires_grad:
            return self.linear(x)
        given, handed_on = self.attention._handed_on
        y, handed_on = Linked.apply(handed_on if given is x else x, self.linear.weight, self.linear.bias)
        object.__setattr__(self.attention, "_handed_on", (x, handed_on))
        return y

    def __getattr__(self, name):
        return getattr(self.linear, name)


@functools.lru_cache(maxsize=None)
def _class_with_links(attention_class: type) -> type:
    def link(name):
        return property(lambda self: _Link(self, self._modules[name]))

    return type(attention_class.__name__, (attention_class,), {"__slots__": ("_handed_on",)} | {n: link(n) for n in NAMES})


def linked(attention):
    """The same module, for one forward: all that it holds, and projections that hand their input on."""
    made = object.__new__(_class_with_links(type(attention)))
    object.__setattr__(made, "__dict__", attention.__dict__)
    object.__setattr__(made, "_handed_on", (None, None))
    return made


def linking(forward: Callable) -> Callable:
    """An attention's forward, its projections linked where there is something to train."""

    @functools.wraps(forward)
    def linking_forward(self, *args, **kwargs):
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not set(NAMES) <= set(self._modules):
            return forward(self, *args, **kwargs)
        return forward(linked(self), *args, **kwargs)

    return linking_forward


def left_alone(module) -> str:
    """Which projections of an attention or a gated MLP are called as ever, and why; for the report."""
    names = [n for n in (*NAMES, "gate_proj", "up_proj", "down_proj") if n in module._modules]
    linears = {name: module._modules[name] for name in names}
    if not any(p.device.type in _whole().DEVICES for linear in linears.values() for p in linear.parameters()):
        return ""
    found = [f"{name} has {why}" for name, linear in linears.items() if (why := _whole().why_not_linear(linear))]
    return f"{', '.join(found)}: its products are autograd's own" if found else ""
