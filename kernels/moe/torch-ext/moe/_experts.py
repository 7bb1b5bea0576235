"""The ops behind one function, for layers and for callers."""

import math

import torch

from ._package import ops


def experts(
    x,
    index,
    weights,
    w_up,
    b_up,
    w_down,
    b_down,
    activation="swiglu",
    alpha=1.0,
    limit=math.inf,
    interleaved=False,
    transposed=False,
    scale_input=False,
):
    """x [T, H], index and weights [T, k] -> [T, H] in x's dtype. w_up [E, N, H] and w_down [E, H, I], or with `transposed`
    [E, H, N] and [E, I, H]. An index below 0 or from E on is skipped. Under autocast x may be wider than the weights."""
    dtype = x.dtype
    if weights.dtype not in (torch.float32, w_up.dtype):
        weights = weights.float()
    tensors = (x.to(w_up.dtype), index, weights, w_up, b_up, w_down, b_down)
    options = (activation, alpha, limit, interleaved, transposed, scale_input)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        y = ops.moe_experts_train(*tensors, *options)[0]
    else:
        y = ops.moe_experts(*tensors, *options)
    return y.to(dtype)
