"""A gated MLP as one node of the graph, down(act(gate(x)) * up(x)), for training on a GPU.

What act(gate) * up gave is not kept for down's gradient: backward makes it again in the pass that makes the gradients of gate
and up, in place of its own gradient. That is rows * inner numbers less a layer from forward on, for a sixth more of that pass.
"""

import functools

import torch
from torch.nn import functional as F

from . import _ownership
from ._derivatives import first_order
from ._package import ops
from .linked import Chain, trains


class GatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, op, x, gate_weight, up_weight, down_weight):
        gate, up = F.linear(x, gate_weight), F.linear(x, up_weight)
        ctx.op = op
        ctx.save_for_backward(x, gate_weight, up_weight, down_weight, gate, up)
        return F.linear(getattr(ops, op)(gate, up), down_weight)

    @staticmethod
    @functools.partial(first_order, "a gated MLP")
    def backward(ctx, dy):
        saved = ctx.saved_tensors
        (x, gate_weight, up_weight, down_weight), made = saved[:4], saved[4:]
        del saved  # gate and up are in no other variable
        _, *wanted = ctx.needs_input_grad
        d_y = dy @ down_weight  # of the output in the middle
        if not _ownership.may_overwrite(made):
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
    gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    if not trains(x):
        return down(getattr(ops, op)(gate(x), up(x)))
    # Whoever has hooks on what is saved has other plans with it. A checkpoint, for one, ends its second forward at the last
    # tensor that is saved, which must not be behind the last product.
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    if not hooked and trains(x, gate, up, down) and all(l.bias is None for l in (gate, up, down)):
        return GatedMlp.apply(op, x, gate.weight, up.weight, down.weight)
    chain = Chain()
    return down(getattr(ops, op)(chain(gate, x), chain(up, x)))
