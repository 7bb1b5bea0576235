"""Linear cross-entropy where the head does not learn (adapters): no gradient of its size is made."""

import functools

import torch

from ._autograd import scaled
from ._derivatives import first_order
from ._package import ops


class FrozenHead(torch.autograd.Function):
    """hidden, weight, bias, target, rows at once, whether to predict, the ops' options -> loss, lse, predicted words."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, rows, predicts, *options):
        ignore_index, label_smoothing, softcap, z_loss, reduction, *weights = options
        count = hidden.shape[0]
        dhidden = torch.empty_like(hidden, memory_format=torch.contiguous_format)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        lse = loss.new_empty(count, 2)
        predicted = target.new_empty(count if predicts else 0)
        for begin in range(0, count, rows):
            some = slice(begin, begin + rows)
            logits = torch.nn.functional.linear(hidden[some], weight, bias)
            if predicts:
                predicted[some] = logits.argmax(1)
            its = (ignore_index, label_smoothing, softcap, z_loss, "sum", *weights)
            its_loss, lse[some] = ops.cross_entropy_fwd_(logits, target[some], *its)
            loss += its_loss
            dhidden[some] = logits @ weight  # logits hold their gradient now
        counted = (target != ignore_index).sum() if reduction == "mean" else torch.ones_like(loss)
        ctx.save_for_backward(dhidden, 1 / counted.clamp(min=1).float())
        ctx.mark_non_differentiable(lse, predicted)
        ctx.inputs, ctx.made_in_forward = 6 + len(options), True
        return loss / counted, lse, predicted  # a mean over no row is nan, and its gradient 0, as in torch

    @staticmethod
    @functools.partial(first_order, "linear_cross_entropy")
    def backward(ctx, dloss, *_):
        dhidden, scale = ctx.saved_tensors
        return scaled(dhidden, dloss * scale), *(None,) * (ctx.inputs - 1)
