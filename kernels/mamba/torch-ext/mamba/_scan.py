"""Mamba's selective scan: fakes, gradients, and the functions of mamba_ssm. What is common with ssd is made here."""

import torch

from ._conv import given_only, gradient_like, in_layout, wants_gradient, without_gradient
from ._package import ops
from ._package import like

INPUTS = 10  # tensors of a scan, of either kind; settings come behind them
_CHUNK, _GPU_CHUNK = 64, 32  # steps; the op keeps the state in front of each chunk for its backward


def gradients_of(op):
    """For the op and its form for training: what forward gives behind its two results is for backward."""

    def setup(ctx, inputs, output):
        kept = output[2:]
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:INPUTS], *kept)
        ctx.settings = inputs[INPUTS:]

    def backward(ctx, dy, dlast, *_):
        saved = ctx.saved_tensors
        inputs, kept = saved[:INPUTS], saved[INPUTS:]
        if not kept:  # the op for inference keeps nothing
            kept = getattr(ops, f"{op}_fwd")(*inputs, *ctx.settings)[2:]
        dy = torch.zeros_like(inputs[0]) if dy is None else dy
        gradients = getattr(ops, f"{op}_bwd")(dy, dlast, *inputs, *kept, *ctx.settings)
        return *given_only(gradients, inputs), None, *(None for _ in ctx.settings)

    return {name: (backward, setup) for name in (op, f"{op}_fwd")}


def _results(u, delta, A, *rest):
    return in_layout(u), u.new_empty((*u.shape[:2], A.shape[1]), dtype=torch.float32)


def _results_for_training(u, delta, A, *rest):
    chunk = _GPU_CHUNK if u.is_cuda else _CHUNK
    chunks = (u.shape[2] + chunk - 1) // chunk
    return *_results(u, delta, A), u.new_empty((u.shape[0], chunks, A.shape[1], u.shape[1]), dtype=torch.float32)


def _gradients(dy, dlast, u, delta, A, B, C, D, z, delta_bias, initial_state, *rest):
    like_u = lambda t: gradient_like(u, t)
    dz = like_u(z) if z is None else in_layout(z)
    return in_layout(u), in_layout(delta), like(A), like(B), like(C), like_u(D), dz, like_u(delta_bias), like_u(initial_state)


FAKES = {
    "selective_scan": _results,
    "selective_scan_fwd": _results_for_training,
    "selective_scan_bwd": _gradients,
    "selective_state_update": lambda state, x, *_: like(x),
}
GRADIENTS = gradients_of("selective_scan")


def laid_out_as(u, t):
    """t [B, D, L] with channels beside each other where u has them so, or steps."""
    channels = lambda x: x.stride(1) < x.stride(2)
    if 1 in u.shape[1:] or channels(t) == channels(u):
        return t
    return t.transpose(1, 2).contiguous().transpose(1, 2) if channels(u) else t.contiguous()


def selective_scan(u, delta, *rest):
    """The op's arguments: y [B, D, L] in u's dtype and the last state, float32 [B, D, N]. A GPU's kernels take whole vectors only
    where both lie alike; the product that transformers' mixers have for delta leaves steps beside each other, all else has channels."""
    inputs = u, laid_out_as(u, delta) if u.is_cuda else delta, *rest
    return (ops.selective_scan_fwd if wants_gradient(*inputs[:INPUTS]) else ops.selective_scan)(*inputs)[:2]


def selective_scan_fn(
    u,
    delta,
    A,
    B,
    C,
    D=None,
    z=None,
    delta_bias=None,
    delta_softplus=False,
    return_last_state=False,
    initial_state=None,
    seq_idx=None,
):
    """u, delta, z [B, D, L], A [D, N], B and C [D, N], [B, N, L] or [B, G, N, L], D and delta_bias [D]: y [B, D, L], with
    return_last_state also the state behind the last token, float32 [B, D, N]. Both have gradients."""
    y, last = selective_scan(u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, delta_softplus)
    return (y, last) if return_last_state else y


def selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None):
    """One token: state [rows, D, N] with x, dt [B, D], B, C [B, N]; or [rows, H, P, N] with x, dt [B, H, P], B, C [B, G, N].
    The state moves on in place; a negative index has none, and its y is 0."""
    inputs = x, dt, A, B, C, D, z, dt_bias
    return without_gradient(ops.selective_state_update(state, *inputs, state_batch_indices, dt_softplus), *inputs)
