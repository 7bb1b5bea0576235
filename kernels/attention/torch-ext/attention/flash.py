"""flash-attention's functions, every argument of them by name, and sinks, chunks, lengths of keys and pages beside them."""

import torch
from torch.nn.functional import pad

from . import operators
from ._package import ops
from .dropout import with_dropout


def _options(q, softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, attention_chunk):
    left, right = (-1 if side is None or side < 0 else int(side) for side in window_size)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    return s_aux, alibi_slopes, scale, bool(causal), left, right, int(attention_chunk or 0), float(softcap or 0.0)


def _trains(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _result(out, lse, with_lse):
    return (out, lse, None) if with_lse else out  # the third: probabilities, which nothing here ever holds


MULTIPLES_OF_8 = ("cuda",)  # devices whose kernels take no other heads


def _wide(*tensors):
    """Zeros behind the numbers of other heads: they change nothing."""
    others = [t is not None and t.shape[-1] % 8 != 0 and t.device.type in MULTIPLES_OF_8 for t in tensors]
    return [pad(t, (0, -t.shape[-1] % 8)) if other else t for t, other in zip(tensors, others)]


def _narrow(out, value_dim):
    return out if out.shape[-1] == value_dim else out[..., :value_dim]


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    s_aux=None,
    attention_chunk=0,
):
    """q [batch, rows, heads, dim], k, v [batch, key rows, key heads, dim] -> [batch, rows, heads, dim of v].

    window_size: keys before and behind a query's own, -1: all. softcap: scores become softcap * tanh(scores / softcap).
    alibi_slopes [heads] or [batch, heads]. s_aux [heads]: sinks, each one more score of no value. attention_chunk: a query
    sees its own chunk of so many keys. deterministic: gradients of the same bits each time (else as torch is set; on the
    CPU always). return_attn_probs: (out, lse [batch, heads, rows], None).
    """
    options = _options(q, softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, attention_chunk)
    if dropout_p > 0:
        return _result(with_dropout(q, k, v, dropout_p, options, None, return_attn_probs), None, False)
    value_dim, (q, k, v) = v.shape[-1], _wide(q, k, v)
    if return_attn_probs or _trains(q, k, v, s_aux):
        forward = operators.deterministic_fwd if deterministic else ops.attention_fwd
        out, lse = forward(q, k, v, *options)
        return _result(_narrow(out, value_dim), lse, return_attn_probs)
    return _narrow(ops.attention(q, k, v, *options), value_dim)


def _int32(t):
    return t if t.dtype == torch.int32 else t.to(torch.int32)


def _bound(length, tokens):  # without asking a GPU how long a sequence is
    return tokens if isinstance(length, torch.Tensor) or length is None else length


def _pages_in_a_row(k, v, block_table, cu_seqlens_k):
    """Pages of each sequence one behind the other; which of their rows are in use is seqused_k's."""
    batch, blocks = block_table.shape
    index = block_table.clamp(min=0).flatten().long()
    rows = blocks * k.shape[1]
    k, v = (t.index_select(0, index).flatten(0, 1) for t in (k, v))
    cu = torch.arange(0, (batch + 1) * rows, max(rows, 1), dtype=torch.int32, device=k.device)[: batch + 1]
    return k, v, cu, cu_seqlens_k.diff()


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
    s_aux=None,
    seqused_k=None,
    attention_chunk=0,
):
    """Sequences one behind the other: q [tokens, heads, dim], k, v [tokens, key heads, dim]; where each begins, and at last
    ends, stands in cu_seqlens [sequences + 1]. max_seqlen: int or tensor, a bound. seqused_k [sequences]: so many of a
    sequence's keys are there. block_table [sequences, pages]: k and v are pages [pages, rows, key heads, dim].
    lse: [heads, tokens]."""
    options = _options(q, softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, attention_chunk)
    cu_q, cu_k = _int32(cu_seqlens_q), _int32(cu_seqlens_k)
    if block_table is not None:
        used = seqused_k
        k, v, cu_k, lengths = _pages_in_a_row(k, v, block_table, cu_k)
        seqused_k = lengths if used is None else used
    used = None if seqused_k is None else _int32(seqused_k)
    sequences = (cu_q, cu_k, used, _bound(max_seqlen_q, q.shape[0]), _bound(max_seqlen_k, k.shape[0]))
    if dropout_p > 0:
        return with_dropout(q, k, v, dropout_p, options, sequences, return_attn_probs)
    value_dim, (q, k, v) = v.shape[-1], _wide(q, k, v)
    if return_attn_probs or _trains(q, k, v, s_aux):
        forward = operators.deterministic_varlen_fwd if deterministic else ops.attention_varlen_fwd
        out, lse = forward(q, k, v, *sequences, *options)
        return _result(_narrow(out, value_dim), lse, return_attn_probs)
    return _narrow(ops.attention_varlen(q, k, v, *sequences, *options), value_dim)


def _rotated(x, cos, sin, positions, interleaved):
    """x [batch, rows, heads, dim], its first numbers turned by the tables' rows at positions [batch, rows]."""
    half = cos.shape[-1]
    cos, sin = (t[positions].unsqueeze(2).to(x.dtype) for t in (cos, sin))
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    parts = a * cos - b * sin, b * cos + a * sin
    turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([turned, rest], -1)


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
    s_aux=None,
    attention_chunk=0,
    page_table=None,
):
    """q [batch, rows, heads, dim] over a cache [entries, rows, key heads, dim], or with block_table (page_table)
    [entries, pages] over pages [pages, rows, key heads, dim]. cache_batch_idx [batch]: which entry is a sequence's. k, v [batch, new rows, key heads, dim] are written to the cache
    first, behind the cache_seqlens [batch] (or one int) tokens that are there. No gradient."""
    if cache_leftpad is not None:
        raise NotImplementedError("flash_attn_with_kvcache: expected cache_leftpad=None; got one; begin each row at its token 0")
    if block_table is not None and page_table is not None:
        raise ValueError("flash_attn_with_kvcache: expected block_table or page_table, which are the same; got both; pass one")
    if cache_seqlens is None:
        if k is not None or block_table is not None or page_table is not None:
            raise ValueError("flash_attn_with_kvcache: expected cache_seqlens with new keys and with pages; got None; pass them")
        cache_seqlens = k_cache.shape[1]
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
    table = block_table if page_table is None else page_table
    if rotary_cos is not None:
        rows = torch.arange(max(q.shape[1], 0 if k is None else k.shape[1]), device=q.device)
        places = (cache_seqlens.unsqueeze(1) + rows).clamp(min=0).long()
        # Without causality or a window all queries stand at one place, as flash-attention has it.
        along = causal or tuple(window_size) != (-1, -1)
        at = places[:, : q.shape[1]] if along else places[:, :1].expand(-1, q.shape[1])
        q = _rotated(q, rotary_cos, rotary_sin, at, rotary_interleaved)
        if k is not None:
            k = _rotated(k, rotary_cos, rotary_sin, places[:, : k.shape[1]], rotary_interleaved)
    if table is not None and cache_batch_idx is not None:  # which row of the table is a sequence's
        table, cache_batch_idx = table.index_select(0, cache_batch_idx.long()), None
    options = _options(q, softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, attention_chunk)
    optional = [None if t is None else _int32(t) for t in (table, cache_batch_idx)]
    with torch.no_grad():
        q, k, v, *caches = _wide(q, k, v, k_cache, v_cache)
        out, lse = ops.attention_decode(q, *caches, k, v, _int32(cache_seqlens), *optional, *options, num_splits)
        for given, padded in zip((k_cache, v_cache), caches):  # as dear as in flash-attention, and as rare
            if k is not None and padded is not given:
                given.copy_(padded[..., : given.shape[-1]])
        out = _narrow(out, v_cache.shape[-1])
    return (out, lse) if return_softmax_lse else out


def flash_attn_qkvpacked_func(qkv, *args, **kwargs):
    """qkv [batch, rows, 3, heads, dim]; then as flash_attn_func."""
    return flash_attn_func(*qkv.unbind(2), *args, **kwargs)


def flash_attn_kvpacked_func(q, kv, *args, **kwargs):
    """kv [batch, key rows, 2, key heads, dim]; then as flash_attn_func."""
    return flash_attn_func(q, *kv.unbind(2), *args, **kwargs)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, *args, **kwargs):
    """qkv [tokens, 3, heads, dim]; then as flash_attn_varlen_func."""
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **kwargs)


def flash_attn_varlen_kvpacked_func(q, kv, *args, **kwargs):
    """kv [tokens, 2, key heads, dim]; then as flash_attn_varlen_func."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *args, **kwargs)
