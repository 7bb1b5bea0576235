"""A gated MLP as one node of the graph, down(act(gate(x)) * up(x)), for training on a GPU.

What act(gate) * up gave is not kept for down's gradient: backward makes it again in the pass that makes the gradients of gate
and up, in place of its own gradient. That is rows * inner numbers less a layer from forward on, for a sixth more of that pass.
The gradients that x has from gate and up meet within the second product, in float32, and not in a sum of two rounded tensors.
"""

import sys

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules import module as _module

from . import _ownership
from ._ops import ops

DEVICES = {"cuda"}  # where it was measured

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _counts(tensors):
    return [(sys.getrefcount(t), t._use_count()) for t in tensors]


_IN_ONE_TUPLE = _counts((torch.empty(0, device="cpu"),))[0][0]


def why_not_linear(linear) -> str:
    """What this projection has that a product with its weight would leave out, or ""."""
    if type(linear) is not nn.Linear or "forward" in linear.__dict__:
        return f"a {type(linear).__name__} with a forward of its own"
    if any(getattr(linear, hooks) for hooks in _HOOKS) or _module._has_any_global_hook():
        return "hooks"
    odd = [t for t in (linear.weight, linear.bias) if t is not None and type(t) not in (torch.Tensor, nn.Parameter)]
    return f"numbers in a {type(odd[0]).__name__}" if odd else ""


def may_fuse(x, *linears) -> bool:
    """Will a gradient be asked for, of tensors that are nothing but numbers on such a device?"""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or type(x) not in (torch.Tensor, nn.Parameter):
        return False
    if x.device.type not in DEVICES or torch.is_autocast_enabled(x.device.type) or torch._C._are_functorch_transforms_active():
        return False
    if any(why_not_linear(l) or l.weight.dtype != x.dtype or l.weight.device != x.device for l in linears):
        return False
    return x.requires_grad or any(l.weight.requires_grad for l in linears)


def _may_overwrite(made) -> bool:
    """As _ownership's, of tensors that forward made itself: one that a hook gave is not the graph's, and may be kept there."""
    given = any(uses == 1 and references > _IN_ONE_TUPLE for references, uses in _counts(made))
    return not given and _ownership.may_overwrite(made)


class GatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, op, x, gate_weight, up_weight, down_weight):
        gate, up = F.linear(x, gate_weight), F.linear(x, up_weight)
        ctx.op = op
        ctx.save_for_backward(x, gate_weight, up_weight, down_weight, gate, up)
        return F.linear(getattr(ops, op)(gate, up), down_weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        saved = ctx.saved_tensors
        (x, gate_weight, up_weight, down_weight), made = saved[:4], saved[4:]
        del saved  # gate and up are in no other variable
        _, *wanted = ctx.needs_input_grad
        d_y = dy @ down_weight  # of the output in the middle
        if not _may_overwrite(made):
            y = getattr(ops, ctx.op)(*made) if wanted[3] else None
            d_gate, d_up = getattr(ops, f"{ctx.op}_bwd")(d_y, *made)
        else:
            d_gate, d_up = (t.detach() for t in made)
            y = d_y if wanted[3] else None
            getattr(ops, f"{ctx.op}_bwd_again_" if wanted[3] else f"{ctx.op}_bwd_")(d_y, d_gate, d_up)
        del d_y, made
        flat = lambda t: t.reshape(-1, t.shape[-1])
        d_down = flat(dy).t() @ flat(y) if wanted[3] else None
        del y
        d_gate, d_up, rows = flat(d_gate), flat(d_up), flat(x)
        d_gates = [d.t() @ rows if asked else None for d, asked in zip((d_gate, d_up), wanted[1:3])]
        dx = (d_gate @ gate_weight).addmm_(d_up, up_weight).view_as(x) if wanted[0] else None
        return None, dx, *d_gates, d_down


def gated_mlp(mlp, x, op: str):
    """down(act(gate(x)) * up(x)) of a module with these three projections."""
    linears = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    if may_fuse(x, *linears) and all(l.bias is None for l in linears):
        return GatedMlp.apply(op, x, *(l.weight for l in linears))
    return mlp.down_proj(getattr(ops, op)(mlp.gate_proj(x), mlp.up_proj(x)))
