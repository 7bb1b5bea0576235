"""transformers' attention interface over these ops, under a name of our own:

    attention.register("hotswap"); model.set_attn_implementation("hotswap")

Under a name with "flash" in it transformers pads values to the width of queries, refuses chunks, and takes the padding
out of a batch in every layer; here it is taken out once a forward (masks.py).
"""

import functools
import inspect

import torch
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention

from .flash import flash_attn_func, flash_attn_varlen_func
from .masks import Mask
from .masks import mask as _mask

DTYPES = {"cuda": (torch.bfloat16, torch.float16)}  # of the kernels of a device
DTYPES_ELSEWHERE = (torch.float32, torch.bfloat16, torch.float16)
MAX_DIM = {"cuda": 512}  # of a head


def _by_formula(q, k, v, mask, scale, dropout, softcap, sinks):
    """What torch's own attention has not: caps on scores, and sinks. q, k, v [batch, heads, rows, dim]; mask: bool, or numbers to
    add, [batch or 1, heads or 1, rows, keys]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = (q @ k.mT).float() * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]].to(q.dtype)
    return (drop(weights, dropout) @ v).transpose(1, 2)


def _by_torch(q, k, v, mask, scale, dropout, softcap, sinks, bias):
    """What the ops do not take: masks that are tensors, types and sizes that they have not, biases. q, k, v
    [batch, heads, rows, dim] -> [batch, rows, heads, dim of v]"""
    rows, keys = q.shape[2], k.shape[2]
    plain = isinstance(mask, Mask) and mask.keys_of is None and mask.keys is None and mask.window == (-1, -1) and not mask.chunk
    by_flag = plain and bias is None and not softcap and sinks is None and (not mask.causal or rows == keys)
    if by_flag:
        causal, mask = mask.causal, None
    else:
        causal, mask = False, mask.tensor(rows, keys, q.device) if isinstance(mask, Mask) else mask[..., :keys]
    if bias is not None:
        lowest = torch.finfo(q.dtype).min
        mask = torch.where(mask, bias, lowest) if mask.dtype == torch.bool else mask + bias
    if softcap or sinks is not None:
        return _by_formula(q, k, v, mask, scale, dropout, softcap, sinks)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped).transpose(1, 2)


def _in_one_type(*tensors):
    """As autocast has it, where norms or rotary embeddings leave some of them in float32."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return [t.to(dtype) if t.dtype != torch.float64 else t for t in tensors]


def has_kernels(device: str, dtype) -> bool:
    return dtype in DTYPES.get(device, DTYPES_ELSEWHERE)


def _served(q, k, v) -> bool:
    """Have the ops this type and heads of this size?"""
    device, widest = q.device.type, max(q.shape[-1], v.shape[-1])
    return q.dtype == k.dtype == v.dtype and has_kernels(device, q.dtype) and widest <= MAX_DIM.get(device, widest)


# ---- keywords -------------------------------------------------------------------------------------------------------

# Taken here; and what says the same as the mask does, or changes no number.
KEYWORDS = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout", "softcap", "is_causal", "s_aux", "position_bias"}
WITHOUT_EFFECT = {"sliding_window", "position_ids", "output_attentions", "deterministic", "use_cache", "cache_position"}
OF_PACKED_ROWS = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}  # transformers gives them to flash alone


@functools.lru_cache(maxsize=None)
def unknown_keywords(forward) -> frozenset:
    """Keywords of an attention that are not understood here: those that a module's forward gives to its attention function, or
    that its own eager formula has a name for."""
    code = getattr(forward, "__code__", None)
    given = {name for c in getattr(code, "co_consts", ()) if isinstance(c, tuple) and {"dropout", "scaling"} & set(c) for name in c}
    eager = getattr(forward, "__globals__", {}).get("eager_attention_forward")
    if inspect.isfunction(eager):
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        given |= {name for name, p in inspect.signature(eager).parameters.items() if p.kind not in kinds}
    return frozenset(given) - KEYWORDS - WITHOUT_EFFECT - OF_PACKED_ROWS


def _refuse_unknown(module, given: dict) -> None:
    names = [name for name in unknown_keywords(inspect.unwrap(type(module).forward)) if given.get(name) is not None]
    if names:
        raise NotImplementedError(
            f"hotswap's attention: expected no keywords but {', '.join(sorted(KEYWORDS))}; got {', '.join(sorted(names))} of "
            f"{type(module).__name__}; set another attn_implementation for this model"
        )


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
    position_bias=None,
    **kwargs,
):
    """query [batch, heads, rows, dim], key, value [batch, key heads, rows, dim] -> [batch, rows, heads, dim of value], None.
    attention_mask: a Mask, None, or a tensor, bool or to be added, [batch or 1, heads or 1, rows, keys]. NotImplementedError for a
    keyword that would change the result and is not one of these."""
    if kwargs and not torch.compiler.is_compiling():
        _refuse_unknown(module, kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = _in_one_type(query, key, value)
    m = attention_mask
    if m is None:  # modules that make no mask
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        m = Mask(causal and query.shape[2] > 1, (-1, -1), 0, None, None, None)
    torchs = isinstance(m, torch.Tensor) or position_bias is not None or dropout > 0 and (softcap or s_aux is not None)
    if torchs or not _served(query, key, value):
        return _by_torch(query, key, value, m, scale, dropout, softcap, s_aux, position_bias), None
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if m.keys is not None:
        k, v = k[:, : m.keys], v[:, : m.keys]
    options = dict(dropout_p=dropout, softmax_scale=scale, causal=m.causal, window_size=m.window, softcap=softcap or 0.0)
    options |= dict(s_aux=s_aux, attention_chunk=m.chunk)
    if m.keys_of is None:
        return flash_attn_func(q, k, v, **options), None
    queries, keys = m.queries_of, m.keys_of
    lengths = (queries.cu_seqlens, keys.cu_seqlens, queries.longest, keys.longest)
    out = flash_attn_varlen_func(queries.packed(q), keys.packed(k), keys.packed(v), *lengths, seqused_k=keys.used, **options)
    return queries.restored(out, *q.shape[:2]), None


def register(name="hotswap"):
    """attn_implementation=name is these ops from now on, for every model of the process that asks for it."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    if "flash" in name or "|" in name or "/" in name:
        raise ValueError(
            f"register: expected a name without 'flash', '|' and '/', which transformers gives a meaning; got {name}; "
            "choose another one"
        )
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, _mask)
