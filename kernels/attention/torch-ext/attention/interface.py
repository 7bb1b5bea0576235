"""transformers' attention interface over these ops, under a name of our own:

    attention.register("hotswap"); model.set_attn_implementation("hotswap")

Under a name with "flash" in it transformers pads values to the width of queries, refuses chunks, and takes the padding
out of a batch in every layer; here it is taken out once a forward (masks.py).
"""

import torch
from torch.nn.functional import dropout as drop

from .flash import flash_attn_func, flash_attn_varlen_func
from .masks import Mask
from .masks import mask as _mask


def _by_formula(q, k, v, mask, scale, dropout, softcap, sinks):
    """For masks that are tensors: bool, or numbers to add. q, k, v [batch, heads, rows, dim]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = (q @ k.mT).float() * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    mask = mask[..., : k.shape[2]]
    scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]].to(q.dtype)
    return (drop(weights, dropout) @ v).transpose(1, 2)


def _real(x, rows):
    return x.flatten(0, 1).index_select(0, rows.index)


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    dropout=0.0,
    softcap=None,
    is_causal=None,
    s_aux=None,
    **kwargs,
):
    """query [batch, heads, rows, dim], key, value [batch, key heads, rows, dim] -> [batch, rows, heads, dim of value]"""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(attention_mask, torch.Tensor):
        return _by_formula(query, key, value, attention_mask, scale, dropout, softcap, s_aux), None
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    m = attention_mask
    if m is None:  # modules that make no mask
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        m = Mask(causal and q.shape[1] > 1, (-1, -1), 0, None, None, None)
    if m.keys is not None:
        k, v = k[:, : m.keys], v[:, : m.keys]
    options = dict(dropout_p=dropout, softmax_scale=scale, causal=m.causal, window_size=m.window, softcap=softcap or 0.0)
    options |= dict(s_aux=s_aux, attention_chunk=m.chunk)
    if m.keys_of is None:
        return flash_attn_func(q, k, v, **options), None
    queries, keys = m.queries_of, m.keys_of
    lengths = (queries.cu_seqlens, keys.cu_seqlens, queries.longest, keys.longest)
    out = flash_attn_varlen_func(_real(q, queries), _real(k, keys), _real(v, keys), *lengths, **options)
    whole = out.new_zeros((q.shape[0] * q.shape[1], *out.shape[1:]))
    return whole.index_copy(0, queries.index, out).unflatten(0, q.shape[:2]), None


def register(name="hotswap"):
    """attn_implementation=name is these ops from now on, for every model of the process that asks for it."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    if "flash" in name or "|" in name or "/" in name:
        raise ValueError(
            f"register: wanted a name without 'flash', '|' and '/', which transformers gives a meaning; got {name}; "
            "choose another one"
        )
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, _mask)
