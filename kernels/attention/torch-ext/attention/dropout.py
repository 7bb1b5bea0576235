"""Attention whose weights are dropped out: torch's own, since no op here draws random numbers."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def _lacks(sinks, slopes, softcap, with_lse):
    asked = {"s_aux": sinks is not None, "alibi_slopes": slopes is not None, "softcap": softcap > 0, "an lse": with_lse}
    return [name for name, wanted in asked.items() if wanted]


def _tokens(cu, count):
    """Of each token of packed sequences: which one it is in, and its place there."""
    places = torch.arange(count, device=cu.device, dtype=torch.int32)
    sequence = torch.bucketize(places, cu[1:], right=True)
    return sequence, places - cu[sequence.clamp(max=cu.shape[0] - 2)]


def _seen(q, k, causal, left, right, chunk, sequences):
    """bool [rows, key rows]"""
    if sequences is None:
        at = torch.arange(k.shape[1] - q.shape[1], k.shape[1], device=q.device).unsqueeze(1)
        key = torch.arange(k.shape[1], device=q.device).unsqueeze(0)
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
    else:
        cu_q, cu_k, used = sequences[:3]
        lengths = cu_k.diff() if used is None else used
        (of_q, at), (of_k, key) = _tokens(cu_q, q.shape[0]), _tokens(cu_k, k.shape[0])
        last = cu_q.shape[0] - 2
        at = (at + (lengths - cu_q.diff())[of_q.clamp(max=last)]).unsqueeze(1)
        seen = (of_q.unsqueeze(1) == of_k.unsqueeze(0)) & (key < lengths[of_k.clamp(max=last)])
        key = key.unsqueeze(0)
    if causal:
        right = 0
    if left >= 0:
        seen = seen & (key >= at - left)
    if right >= 0:
        seen = seen & (key <= at + right)
    if chunk > 0:
        seen = seen & (key.div(chunk, rounding_mode="floor") == at.div(chunk, rounding_mode="floor"))
    return seen


def with_dropout(q, k, v, dropout_p, options, sequences, with_lse):
    """sequences: as the op for packed ones has them; None: q, k, v have a batch."""
    sinks, slopes, scale, causal, left, right, chunk, softcap = options
    if lacks := _lacks(sinks, slopes, softcap, with_lse):
        raise NotImplementedError(
            f"flash_attn: expected dropout_p=0 with {' and '.join(lacks)}; got {dropout_p}: torch's attention, which computes "
            "dropout, has none of these; leave one or the other out"
        )
    packed = sequences is not None
    seen = _seen(q, k, causal, left, right, chunk, sequences)
    q, k, v = ((t.unsqueeze(0) if packed else t).transpose(1, 2) for t in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, seen, dropout_p, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    out = torch.where(seen.any(1).view(-1, 1), out, 0.0).transpose(1, 2)  # rows without keys
    return out.squeeze(0) if packed else out
