"""Mamba's mixers behind their first projection. What lies between that and the scan is computed again in backward, not kept."""

import functools
import math

import torch
from torch.nn import functional as F

from ._conv import causal_conv1d_fn, wants_gradient
from ._derivatives import first_order
from ._package import ops
from ._scan import selective_scan
from ._ssd import rmsnorm_fn, ssd


class _Scan(torch.autograd.Function):
    """The op `scan` of front(*tensors), those inputs first that can have a gradient; backward runs front again."""

    @staticmethod
    def forward(ctx, scan, front, settings, *tensors):
        y, last, kept = getattr(ops, f"{scan}_fwd")(*front(*tensors), *settings)
        ctx.save_for_backward(*tensors, kept)
        ctx.set_materialize_grads(False)
        device = y.device.type
        ctx.autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        ctx.scan, ctx.front, ctx.settings = scan, front, settings
        return y, last

    @staticmethod
    @functools.partial(first_order, "a Mamba mixer")
    def backward(ctx, dy, dlast):
        *tensors, kept = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        device, dtype, enabled = ctx.autocast
        with torch.enable_grad(), torch.autocast(device, dtype, enabled):
            leaves = [t if t is None else t.detach().requires_grad_(w) for t, w in zip(tensors, wanted)]
            inputs = ctx.front(*leaves)
        plain = [t if t is None else t.detach() for t in inputs]
        dy = torch.zeros_like(plain[0]) if dy is None else dy
        gradients = getattr(ops, f"{ctx.scan}_bwd")(dy, dlast, *plain, kept, *ctx.settings)
        ends, along = [], []
        for t, gradient in zip(inputs, gradients):
            if t is not None and t.requires_grad:
                ends.append(t)
                along.append(gradient.to(t.dtype))
        starts = [t for t, w in zip(leaves, wanted) if w]
        found = iter(torch.autograd.grad(ends, starts, along, allow_unused=True))
        return None, None, None, *(next(found) if w else None for w in wanted)


def _scanned(scan, front, settings, *tensors):
    """torch.compile decides by itself what to compute again."""
    if wants_gradient(*tensors) and not torch.compiler.is_compiling():
        return _Scan.apply(scan.__name__, front, settings, *tensors)
    return scan(*front(*tensors), *settings)


def _linear(x, weight, bias):
    return F.linear(x, weight, None if bias is None else bias.to(weight.dtype))


def _rms(x, weight, eps):
    """In float32, as Falcon Mamba has it."""
    y = F.rms_norm(x.float(), x.shape[-1:], None, eps)
    return (y if weight is None else y * weight).to(x.dtype)


def mamba_inner_fn(
    xz,
    conv1d_weight,
    conv1d_bias,
    x_proj_weight,
    delta_proj_weight,
    out_proj_weight,
    out_proj_bias,
    A,
    B=None,
    C=None,
    D=None,
    delta_bias=None,
    B_proj_bias=None,
    C_proj_bias=None,
    delta_softplus=True,
    checkpoint_lvl=1,
    b_rms_weight=None,
    c_rms_weight=None,
    dt_rms_weight=None,
    b_c_dt_rms_eps=1e-6,
):
    """xz [B, 2D, L] to [B, L, the rows of out_proj_weight]: convolution, x_proj, dt_proj, scan, out_proj.

    Norms are where Falcon Mamba was trained with them, in front of dt_proj: dt_rms_weight is as wide as dt_proj's input.
    transformers passes ones as wide as its output there, which only say that there is a norm. checkpoint_lvl is not
    looked at: convolution and delta are always computed again.
    """
    if A.is_complex():
        raise ValueError("expected A in real values; got complex ones; complex state spaces are not served")
    rank, states = delta_proj_weight.shape[1], A.shape[-1]
    if dt_rms_weight is not None and dt_rms_weight.shape[0] != rank:
        if dt_rms_weight.requires_grad:
            raise ValueError(
                f"expected dt_rms_weight [{rank}], of a norm in front of dt_proj; got {list(dt_rms_weight.shape)} to be trained; "
                "detach it, or train with the stock mixer"
            )
        dt_rms_weight = torch.ones((), device=xz.device)
    sizes = [rank, *([] if B is not None else [states]), *([] if C is not None else [states])]

    def front(xz, conv_weight, conv_bias, x_weight, dt_weight, A, B, C, D, dt_bias, B_bias, C_bias, B_norm, C_norm, dt_norm):
        x, z = xz.chunk(2, 1)
        weight = conv_weight.squeeze(1) if conv_weight.dim() == 3 else conv_weight
        u = causal_conv1d_fn(x, weight, conv_bias, activation="silu")
        dt, *parts = F.linear(u.transpose(1, 2), x_weight).split(sizes, -1)

        def of_tokens(part, bias, norm):
            part = part if bias is None else part + bias.to(part.dtype)
            return (part if norm is None else _rms(part, norm, b_c_dt_rms_eps)).transpose(1, 2)

        B = of_tokens(parts[0], B_bias, B_norm) if B is None else B
        C = of_tokens(parts[-1], C_bias, C_norm) if C is None else C
        dt = dt if dt_norm is None else _rms(dt, dt_norm, b_c_dt_rms_eps)
        return u, F.linear(dt, dt_weight).transpose(1, 2), A, B, C, D, z, dt_bias, None, None

    weights = conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight
    of_scan = A, B, C, D, delta_bias, B_proj_bias, C_proj_bias
    norms = b_rms_weight, c_rms_weight, dt_rms_weight
    y, _ = _scanned(selective_scan, front, (delta_softplus,), xz, *weights, *of_scan, *norms)
    return _linear(y.transpose(1, 2), out_proj_weight, out_proj_bias)


def mamba_split_conv1d_scan_combined(
    zxbcdt,
    conv1d_weight,
    conv1d_bias,
    dt_bias,
    A,
    D,
    chunk_size,
    initial_states=None,
    seq_idx=None,
    dt_limit=(0.0, math.inf),
    return_final_states=False,
    activation="silu",
    rmsnorm_weight=None,
    rmsnorm_eps=1e-6,
    outproj_weight=None,
    outproj_bias=None,
    headdim=None,
    ngroups=1,
    norm_before_gate=True,
):
    """zxbcdt [B, L, (an MLP's gate and up |) z | x B C | dt] to [B, L, the rows of outproj_weight]: convolution, SSD, gated
    norm over each of ngroups parts, or the gate alone, out_proj."""
    heads, channels = A.shape[0], conv1d_weight.shape[0]
    if headdim is None and D.dim() == 1:
        raise ValueError("expected headdim, or D [heads, headdim]; got neither; pass headdim")
    inner = heads * (headdim or D.shape[1])
    states = (channels - inner) // (2 * ngroups)
    other = (zxbcdt.shape[-1] - inner - channels - heads) // 2
    weight = conv1d_weight.squeeze(1) if conv1d_weight.dim() == 3 else conv1d_weight

    def parts_of(zxbcdt):
        return zxbcdt.split([other, other, inner, channels, heads], -1)

    def front(zxbcdt, weight, bias, A, D, dt_bias, initial_states, seq_idx):
        _, _, z, xbc, dt = parts_of(zxbcdt)
        xbc = causal_conv1d_fn(xbc.transpose(1, 2), weight, bias, seq_idx=seq_idx, activation=activation).transpose(1, 2)
        x, B, C = xbc.split([inner, ngroups * states, ngroups * states], -1)
        # not by unflatten, whose Python torch.compile cannot follow where there is a default device
        in_parts = lambda t, parts: t.reshape(*t.shape[:-1], parts, t.shape[-1] // parts)
        z = in_parts(z, heads) if rmsnorm_weight is None else None
        B, C = (in_parts(t, ngroups) for t in (B, C))
        return in_parts(x, heads), dt, A, B, C, D, z, dt_bias, initial_states, seq_idx

    settings = chunk_size, True, *(float(limit) for limit in dt_limit)
    tensors = zxbcdt, weight, conv1d_bias, A, D, dt_bias, initial_states, seq_idx
    y, final = _scanned(ssd, front, settings, *tensors)
    y = y.flatten(-2)
    gate, up, z, _, _ = parts_of(zxbcdt)
    if rmsnorm_weight is not None:
        y = rmsnorm_fn(y, rmsnorm_weight, None, z, rmsnorm_eps, inner // ngroups, norm_before_gate)
    if other:
        y = torch.cat([F.silu(gate) * up, y], -1)
    if outproj_weight is not None:
        y = _linear(y, outproj_weight, outproj_bias)
    return (y, final) if return_final_states else y
