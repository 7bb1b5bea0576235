"""The formulas token by token in plain torch, in float64 where they are given it, with autograd's gradients."""

import torch
from torch.nn import functional as F


def conv(x, weight, bias=None, initial_state=None, seq_idx=None, activation=None):
    columns = weight.shape[1] - 1
    before = x.new_zeros(*x.shape[:2], columns) if initial_state is None else initial_state[:, :, -columns or x.shape[2] :]
    whole = torch.cat([before, x], -1)
    y = torch.zeros_like(x) if bias is None else torch.zeros_like(x) + bias[:, None]
    for tap in range(columns + 1):
        part = whole[:, :, tap : tap + x.shape[2]] * weight[:, tap, None]
        if seq_idx is not None:
            of_tap = torch.cat([seq_idx[:, :1].expand(-1, columns), seq_idx], 1)[:, tap : tap + x.shape[2]]
            part = part * (of_tap == seq_idx)[:, None]
        y = y + part
    y = y if activation is None else F.silu(y)
    return y if seq_idx is None else y * (seq_idx >= 0)[:, None]


def scan(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, initial_state=None, seq_idx=None):
    """y and the last state."""
    batch, channels, length = u.shape

    def of_tokens(t):  # [B, G, N, L] for each channel: [B, D, N, L]
        if t.dim() == 2:
            return t[None, :, :, None].expand(batch, channels, -1, length)
        t = t[:, None] if t.dim() == 3 else t
        return t.repeat_interleave(channels // t.shape[1], 1)

    B, C = of_tokens(B), of_tokens(C)
    delta = delta if delta_bias is None else delta + delta_bias[:, None]
    delta = F.softplus(delta) if delta_softplus else delta
    h = u.new_zeros(batch, channels, A.shape[1]) if initial_state is None else initial_state
    now = None if seq_idx is None else seq_idx[:, 0]
    y = []
    for t in range(length):
        moved = (delta[:, :, t, None] * A).exp() * h + (delta * u)[:, :, t, None] * B[..., t]
        if seq_idx is None:
            h = moved
        else:  # another sequence starts from nothing; padding is passed over
            new, real = (seq_idx[:, t] != now)[:, None, None], (seq_idx[:, t] >= 0)[:, None, None]
            fresh = (delta * u)[:, :, t, None] * B[..., t]
            h = torch.where(real, torch.where(new, fresh, moved), h)
            now = torch.where(seq_idx[:, t] >= 0, seq_idx[:, t], now)
        y.append((h * C[..., t]).sum(-1))
    y = torch.stack(y, -1) if y else torch.zeros_like(u)
    y = y if D is None else y + D[:, None] * u
    y = y if z is None else y * F.silu(z)
    return (y if seq_idx is None else y * (seq_idx >= 0)[:, None]), h


def ssd(x, dt, A, B, C, D=None, z=None, dt_bias=None, initial_state=None, seq_idx=None, softplus=True, low=0.0, high=float("inf")):
    """The scan of each head's channels, with the head's step and decay: y [B, L, H, P] and the final state [B, H, P, N]."""
    batch, length, heads, dim = x.shape
    states = B.shape[-1]
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if softplus else dt).clamp(low, high)
    channels = lambda t: t.flatten(2).transpose(1, 2)
    wide = lambda t: t.transpose(1, 2).repeat_interleave(dim, 1)
    of_heads = lambda t: t.permute(0, 2, 3, 1)
    D = None if D is None else (D if D.dim() == 2 else D[:, None].expand(heads, dim)).flatten()
    A = A.repeat_interleave(dim)[:, None].expand(-1, states)
    state = None if initial_state is None else initial_state.flatten(1, 2)
    gate = None if z is None else channels(z)
    y, last = scan(channels(x), wide(dt), A, of_heads(B), of_heads(C), D, gate, None, False, state, seq_idx)
    return y.transpose(1, 2).unflatten(-1, (heads, dim)), last.unflatten(1, (heads, dim))


def gated_norm(x, weight, z=None, eps=1e-6, group_size=None, norm_before_gate=True):
    gate = 1.0 if z is None else F.silu(z)
    x = x if norm_before_gate else x * gate
    groups = x.unflatten(-1, (-1, group_size or x.shape[-1]))
    y = (groups * (groups.square().mean(-1, keepdim=True) + eps).rsqrt()).flatten(-2) * weight
    return y * gate if norm_before_gate else y
