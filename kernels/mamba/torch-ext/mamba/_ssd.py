"""Mamba-2's scan and gated norm: fakes, gradients, and the functions of mamba_ssm."""

import math

import torch
from torch.nn import functional as F

from ._conv import gradient_like, wants_gradient
from ._package import ops
from ._package import like
from ._scan import INPUTS, gradients_of
from ._sequences import of_lengths

_CHUNK = 64  # steps; on the CPU the op keeps the state in front of each chunk for its backward, whatever chunk_size says


def _results(x, dt, A, B, *rest):
    return like(x), x.new_empty((x.shape[0], *x.shape[2:], B.shape[-1]), dtype=torch.float32)


def _results_for_training(x, dt, A, B, *rest):
    batch, length, heads, dim = x.shape
    if x.is_cuda:
        return *_results(x, dt, A, B), x.new_empty(0, dtype=torch.float32)
    chunks = (length + _CHUNK - 1) // _CHUNK
    return *_results(x, dt, A, B), x.new_empty((batch, chunks, heads, B.shape[-1], dim), dtype=torch.float32)


def _gradients(dy, dfinal, x, dt, A, B, C, D, z, dt_bias, initial_state, *rest):
    wide = lambda t: gradient_like(x, t).float()
    return like(x), like(dt), wide(A), like(B), like(C), wide(D), gradient_like(x, z), wide(dt_bias), wide(initial_state)


def _norm_for_training(x, z, weight, eps, group_size, norm_before_gate):
    columns = x.shape[-1]
    return like(x), x.new_empty((x.numel() // columns, columns // group_size), dtype=torch.float32)


def _norm_setup(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:3], output[1])
    ctx.settings = inputs[4:]


def _norm_backward(ctx, dy, _):
    return *ops.gated_rms_norm_bwd(dy, *ctx.saved_tensors, *ctx.settings), None, None, None


FAKES = {
    "ssd": _results,
    "ssd_fwd": _results_for_training,
    "ssd_bwd": _gradients,
    "gated_rms_norm": lambda x, *_: like(x),
    "gated_rms_norm_fwd": _norm_for_training,
    "gated_rms_norm_bwd": lambda dy, x, z, weight, *_: (like(x), like(z), like(weight)),
}
GRADIENTS = gradients_of("ssd") | {"gated_rms_norm_fwd": (_norm_backward, _norm_setup)}


def ssd(*inputs):
    """The op's arguments: y [B, L, H, P] in x's dtype and the final state, float32 [B, H, P, N]."""
    return (ops.ssd_fwd if wants_gradient(*inputs[:INPUTS]) else ops.ssd)(*inputs)[:2]


def mamba_chunk_scan_combined(
    x,
    dt,
    A,
    B,
    C,
    chunk_size,
    D=None,
    z=None,
    dt_bias=None,
    initial_states=None,
    seq_idx=None,
    cu_seqlens=None,
    dt_softplus=False,
    dt_limit=(0.0, math.inf),
    return_final_states=False,
):
    """x, z [B, L, H, P], dt [B, L, H], A [H], B, C [B, L, G, N], D [H] or [H, P], dt_bias [H]: y as x; with
    return_final_states also the state behind the last token, float32 [B, H, P, N]. Both have gradients."""
    seq_idx = of_lengths(cu_seqlens, x.shape[0], x.shape[1]) if seq_idx is None else seq_idx
    inputs = (x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx)
    y, final = ssd(*inputs, chunk_size, dt_softplus, *(float(limit) for limit in dt_limit))
    return (y, final) if return_final_states else y


def rmsnorm_fn(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True):
    """rms(x silu(z)) weight, or with norm_before_gate rms(x) weight silu(z), each over group_size numbers, or over all."""
    if bias is not None:
        raise ValueError("expected no bias; got one; add it to the result, times silu(z) with norm_before_gate")
    group_size = group_size or x.shape[-1]
    if z is None:
        y = F.rms_norm(x.float().unflatten(-1, (-1, group_size)), (group_size,), None, eps)
        return (y.flatten(-2) * weight).to(x.dtype)
    settings = x, z, weight, eps, group_size, norm_before_gate
    return ops.gated_rms_norm_fwd(*settings)[0] if wants_gradient(x, z, weight) else ops.gated_rms_norm(*settings)
