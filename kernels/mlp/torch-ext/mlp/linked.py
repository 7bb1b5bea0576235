"""Projections of one input, for training on a GPU: the gradients that the input has from them meet in their products.

Autograd makes a tensor for each projection and adds them up, which reads and writes each again. Here each projection also hands
its input on to the next, so that backward goes through them in turn and each product adds to what is there, rounded no more often
than a sum of two tensors: in float32 on the CPU, and on an H200 by cuBLAS to the same values as such a sum.
"""

import functools

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as _module

from ._derivatives import first_order

DEVICES = {"cuda"}  # where it was measured

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def why_not(linear) -> str:
    """What this projection has that a product with its weight would leave out, or ""."""
    if type(linear) is not nn.Linear or "forward" in linear.__dict__:
        return f"a {type(linear).__name__} with a forward of its own"
    if any(getattr(linear, hooks) for hooks in _HOOKS) or _module._has_any_global_hook():
        return "hooks"
    odd = [t for t in (linear.weight, linear.bias) if t is not None and type(t) not in (torch.Tensor, nn.Parameter)]
    return f"numbers in a {type(odd[0]).__name__}" if odd else ""


def trains(x, *linears) -> bool:
    """Will x have a gradient, and are all of these plain tensors on such a device?"""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or type(x) not in (torch.Tensor, nn.Parameter):
        return False
    device = x.device
    if device.type not in DEVICES or torch.is_autocast_enabled(device.type) or torch._C._are_functorch_transforms_active():
        return False
    return x.requires_grad and not any(why_not(l) or l.weight.dtype != x.dtype or l.weight.device != device for l in linears)


class Linked(torch.autograd.Function):
    """x, weight, bias -> x @ weight^T + bias, and x for the next one."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias), x

    @staticmethod
    @functools.partial(first_order, "linked projections")
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


class Chain:
    """Calls projections, those of the input that the last one had linked to it."""

    def __init__(self):
        self.given = self.handed_on = None

    def __call__(self, linear, x):
        if not trains(x, linear):
            return linear(x)
        y, self.handed_on = Linked.apply(self.handed_on if self.given is x else x, linear.weight, linear.bias)
        self.given = x
        return y
