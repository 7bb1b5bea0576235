"""The ops for autograd and the compiler: their outputs' shapes, their gradients."""

import torch

from . import _package
from ._derivatives import first_order
from ._package import ops

OPTIONS = 8  # arguments: sinks, alibi_slopes, scale, causal, window_left, window_right, chunk, softcap
SEQUENCES = 5  # cu_seqlens_q, cu_seqlens_k, seqused_k, max_seqlen_q, max_seqlen_k
sharded = _package.sharding


def _out(q, v):
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _lse(q):  # [batch, heads, rows], of packed sequences [heads, rows]
    return q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=torch.float32)


def _forward(q, k, v, *rest):
    return _out(q, v)


def _forward_train(q, k, v, *rest):
    return _out(q, v), _lse(q)


def _gradients(dout, q, k, v, out, lse, dlse, *rest):
    sinks = rest[-OPTIONS - 1]
    dsinks = q.new_empty((0 if sinks is None else q.shape[-2],), dtype=torch.float32)
    return _package.like(q), _package.like(k), _package.like(v), dsinks


def _decode(q, k_cache, v_cache, *rest):
    return _out(q, v_cache), _lse(q)


def _setup(ctx, inputs, output):
    q, k, v, *rest = inputs
    sinks = rest[-OPTIONS]
    ctx.tensors = [i for i, x in enumerate(rest) if isinstance(x, torch.Tensor)]
    ctx.rest = [None if isinstance(x, torch.Tensor) else x for x in rest]
    ctx.sinks_dtype = None if sinks is None else sinks.dtype
    ctx.trains = isinstance(output, tuple)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *(output if ctx.trains else ()), *(rest[i] for i in ctx.tensors))


def _gradient(forward_train, backward, deterministic):
    def gradient(ctx, dout, dlse=None):
        q, k, v, *saved = ctx.saved_tensors
        rest = list(ctx.rest)
        for i, tensor in zip(reversed(ctx.tensors), reversed(saved)):
            rest[i] = tensor
        out, lse = saved[:2] if ctx.trains else forward_train(q, k, v, *rest)
        none = [None] * len(rest)
        if dout is None and dlse is None:
            return (None, None, None, *none)
        if dout is None:
            dout = torch.zeros_like(out)
        dq, dk, dv, dsinks = backward(dout, q, k, v, out, lse, dlse, *rest, deterministic())
        if ctx.sinks_dtype is not None:
            none[len(rest) - OPTIONS] = dsinks.to(ctx.sinks_dtype)
        return (dq, dk, dv, *none)

    return gradient


def _always(forward_train, backward):
    """forward_train with the gradient that has the same bits every time, whatever torch is set to."""

    class Deterministic(torch.autograd.Function):
        forward = staticmethod(lambda *args: forward_train(*args))
        setup_context = staticmethod(_setup)

    gradient = _gradient(forward_train, backward, lambda: True)
    Deterministic.backward = staticmethod(first_order("attention", gradient))
    return Deterministic.apply


_DENSE, _PACKED = (ops.attention_fwd, ops.attention_bwd), (ops.attention_varlen_fwd, ops.attention_varlen_bwd)
deterministic_fwd, deterministic_varlen_fwd = _always(*_DENSE), _always(*_PACKED)
_dense, _packed = (_gradient(*pair, torch.are_deterministic_algorithms_enabled) for pair in (_DENSE, _PACKED))
_package.register(
    {
        "attention": _forward,
        "attention_fwd": _forward_train,
        "attention_bwd": _gradients,
        "attention_varlen": _forward,
        "attention_varlen_fwd": _forward_train,
        "attention_varlen_bwd": _gradients,
        "attention_decode": _decode,
    },
    {
        "attention": (_dense, _setup),
        "attention_fwd": (_dense, _setup),
        "attention_varlen": (_packed, _setup),
        "attention_varlen_fwd": (_packed, _setup),
    },
)
