"""Mixture of experts: experts(x, index, weights, ...) sends each token through the experts that a router chose for it."""

import torch

from . import _ownership, _package, layers, sharding
from ._experts import experts
from ._package import ops
from ._package import like as _like

# Arguments of forward: seven tensors, then options.
TENSORS = 7


def _saved_fakes(x, index, w_up, transposed):
    slots, columns = index.numel(), w_up.shape[2 if transposed else 1]
    ints = lambda n: index.new_empty((n,), dtype=torch.int32)
    return x.new_empty((slots, columns)), ints(slots), ints(slots), ints(w_up.shape[0] + 1)


def _train_fake(x, index, weights, w_up, b_up, w_down, b_down, activation, alpha, limit, interleaved, transposed, scale_input):
    return _like(x), *_saved_fakes(x, index, w_up, transposed)


def _backward_fake(dy, x, index, weights, w_up, b_up, w_down, b_down, *others):
    wanted = lambda t: w_up.new_empty((0,)) if t is None or not others[-1] else _like(t)
    return _like(x), _like(weights), wanted(w_up), wanted(b_up), wanted(w_down), wanted(b_down)


def _setup(ctx, inputs, output):
    saved = ()
    if isinstance(output, tuple):
        saved = output[1:]
        ctx.mark_non_differentiable(*saved)
    ctx.save_for_backward(*inputs[:TENSORS], *saved)
    ctx.options = inputs[TENSORS:]


def _backward(ctx, dy, *_):
    tensors = list(ctx.saved_tensors)  # once: checkpointing makes them again when they are asked for
    inputs, saved = tensors[:TENSORS], tensors[TENSORS:]
    del tensors
    in_place = False
    if saved:
        # h alone, in no other variable; all the other tensors are somebody else's, too, and only read.
        h = (saved.pop(0),)
        in_place = _ownership.may_overwrite(h)
        saved = (*h, *saved)
    else:  # the op for inference keeps nothing
        saved = ops.moe_experts_train(*inputs, *ctx.options)[1:]
    saved = tuple(t.detach() for t in saved)  # the same memory, no longer part of the graph
    weight_grads = any(ctx.needs_input_grad[3:TENSORS])
    op = ops.moe_experts_bwd_ if in_place else ops.moe_experts_bwd
    dx, dweights, *of_weights = op(dy, *inputs, *saved, *ctx.options, weight_grads)
    given = [d if weight_grads and t is not None else None for d, t in zip(of_weights, inputs[3:])]
    return dx, None, dweights, *given, *(None for _ in ctx.options)


_package.register(
    {
        "moe_experts": lambda *inputs: _train_fake(*inputs)[0],
        "moe_experts_train": _train_fake,
        "moe_experts_packed": lambda x, *_: _like(x),
        "moe_experts_bwd": _backward_fake,
        "moe_experts_bwd_": _backward_fake,
    },
    {op: (_backward, _setup) for op in ("moe_experts", "moe_experts_train")},
)
register_sharding = _package.sharding(sharding.rules)

__all__ = ["experts", "layers", "register_sharding"]
