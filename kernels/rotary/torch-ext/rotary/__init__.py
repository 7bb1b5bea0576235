"""Rotary position embedding. `apply_rotary` works on [batch, heads, time, dim]; `apply_rotary_` in place."""

import torch

from . import _package, layers, sharding
from ._package import ops


def apply_rotary(q, k, cos, sin, rotary_dim=None, interleaved=False):
    """q [b, heads, s, d], k [b, kv_heads, s, d]; cos, sin [1 or b, s, rotary_dim] or half as wide."""
    return ops.rotary(q, k, cos, sin, rotary_dim or q.shape[-1], interleaved)


def apply_rotary_(q, k, cos, sin, rotary_dim=None, interleaved=False):
    """As apply_rotary, writing into q and k. Not differentiable."""
    ops.rotary_(q, k, cos, sin, rotary_dim or q.shape[-1], interleaved)
    return q, k


def _fake(q, k, cos, sin, rotary_dim, interleaved):
    return torch.empty_like(q), torch.empty_like(k)


def _setup(ctx, inputs, output):
    _, _, cos, sin, ctx.rotary_dim, ctx.interleaved = inputs
    if cos.requires_grad or sin.requires_grad:
        raise NotImplementedError("rotary: expected cos and sin without gradient; got one that requires it; detach it")
    ctx.save_for_backward(cos, sin)


def _backward(ctx, dq, dk):
    cos, sin = ctx.saved_tensors
    return (*ops.rotary_bwd(dq, dk, cos, sin, ctx.rotary_dim, ctx.interleaved), None, None, None, None)


_package.register(
    {"rotary": _fake, "rotary_bwd": _fake, "rotary_": lambda q, k, cos, sin, rotary_dim, interleaved: None},
    {"rotary": (_backward, _setup)},
)
register_sharding = _package.sharding(sharding.rules)

__all__ = ["register_sharding", "apply_rotary", "apply_rotary_", "layers"]
