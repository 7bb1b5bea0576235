"""Both losses as functions, with what can be made around the ops at no cost."""

from dataclasses import dataclass, replace
from typing import Optional

import torch

from ._frozen import FrozenHead
from ._package import ops

FROZEN_BYTES = 1 << 28  # of logits at once, where the head does not learn


@dataclass
class CrossEntropyOutput:
    """A loss, and what was asked for beside it: the part of it that is z-loss, the share of targets whose logit is the
    highest (one number a row with reduction "none"), the word of the highest logit in each row, -1 where it is ignored.
    None of these three has a gradient."""

    loss: torch.Tensor
    z_loss: Optional[torch.Tensor] = None
    token_accuracy: Optional[torch.Tensor] = None
    predicted_tokens: Optional[torch.Tensor] = None


def _reduced(rows, target, ignore_index, reduction):
    if reduction == "none":
        return rows
    total = rows.sum(dtype=torch.float64).float()
    return total / (target != ignore_index).sum() if reduction == "mean" else total


def _mean_one(class_weight, target, ignore_index):
    """Scaled so that the mean over the targets is 1. The ops' mean divides by rows, torch's by weights: of these alike."""
    counts = target != ignore_index
    of_targets = class_weight[torch.where(counts, target, 0).clamp(0, len(class_weight) - 1)]
    return class_weight * (counts.sum() / torch.where(counts, of_targets, 0.0).sum())


def _options(target, vocab, ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling):
    """As the ops take them."""
    if class_weight is not None:
        if class_weight.shape != (vocab,) or not class_weight.is_floating_point() or class_weight.requires_grad:
            raise ValueError(
                f"expected class_weight [{vocab}] of a floating type that learns nothing; got {list(class_weight.shape)} "
                f"{class_weight.dtype}, requires_grad={class_weight.requires_grad}; one number a word, detached"
            )
        class_weight = class_weight.float()
        if reduction == "mean":
            class_weight = _mean_one(class_weight, target, ignore_index)
    return ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling


@torch.no_grad()
def _output(loss, lse, target, options, returns, predicted, target_logit):
    """returns: z-loss, accuracy, prediction, wanted or not; predicted, target_logit: called for what is wanted."""
    ignore_index, _, softcap, z_loss, reduction, _, token_scaling = options
    most, log_sum = lse.unbind(1)  # whose sum the logarithm of the sum of exponentials is
    beside, counts = [None, None, None], target != ignore_index
    if returns[0]:
        rows = z_loss * (most + log_sum).square()  # 0 where a row is ignored
        if token_scaling:
            u = target_logit(torch.where(counts, target, 0)).float()
            u = softcap * torch.tanh(u / softcap) if softcap else u
            rows = rows * ((u - most) - log_sum).exp()
        beside[0] = _reduced(rows, target, ignore_index, reduction).to(loss.dtype)
    if returns[1] or returns[2]:
        words = torch.where(counts, predicted(), -1)
        if returns[1]:
            hits = ((words == target) & counts).float()
            beside[1] = hits if reduction == "none" else hits.sum() / counts.sum()
        beside[2] = words if returns[2] else None
    return CrossEntropyOutput(loss, *beside)


def cross_entropy(
    logits,
    target,
    ignore_index=-100,
    label_smoothing=0.0,
    softcap=0.0,
    z_loss=0.0,
    reduction="mean",
    class_weight=None,
    token_scaling=False,
    dtype=None,
    *,
    return_z_loss=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
    gradient_in_forward=False,
):
    """logits [n, vocab], target int64 [n] -> the loss, or a CrossEntropyOutput where something is asked for beside it.

    class_weight: [vocab], as torch's `weight`; z_loss is not weighted. token_scaling: each row's loss is multiplied by the
    probability of its target, a constant to the gradient.
    dtype: of the loss; None: the logits', as torch's. All that is summed on the way is float32, or wider.
    gradient_in_forward: forward, where a gradient is asked for, makes that of the logits on its way, in a tensor of their
    size, and the logits are read once instead of twice. The graph then holds this in place of the logits: no more memory at
    the moment when backward begins, but the logits' size more from forward on for whoever holds these too, and for a loss
    without a backward. Not with reduction "none", whose rows have gradients of their own.
    """
    more = (ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling)
    options = _options(target, logits.shape[1], *more)
    learns = torch.is_grad_enabled() and logits.requires_grad
    op = ops.cross_entropy_fwd_bwd if gradient_in_forward and learns and reduction != "none" else ops.cross_entropy_fwd
    loss, lse, *_ = op(logits, target, *options)
    loss = loss.to(logits.dtype if dtype is None else dtype)
    returns = return_z_loss, return_token_accuracy, return_predicted_tokens
    if not any(returns):
        return loss
    of_target = lambda words: logits.gather(1, words[:, None])[:, 0]  # noqa: E731
    return _output(loss, lse, target, options, returns, lambda: logits.argmax(1), of_target)


def cross_entropy_(
    logits, target, ignore_index=-100, label_smoothing=0.0, softcap=0.0, z_loss=0.0, reduction="mean", class_weight=None,
    token_scaling=False,
):  # fmt: skip
    """The float32 loss, with d loss / d logits in the place of the logits (rows must be contiguous): no second tensor of
    their size. No autograd: the caller takes the gradient on from there."""
    more = (ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling)
    with torch.no_grad():
        return ops.cross_entropy_fwd_(logits, target, *_options(target, logits.shape[1], *more))[0]


def linear_cross_entropy(
    hidden,
    weight,
    target,
    bias=None,
    ignore_index=-100,
    label_smoothing=0.0,
    softcap=0.0,
    z_loss=0.0,
    reduction="mean",
    float32_dweight=False,
    chunk_bytes=0,
    class_weight=None,
    token_scaling=False,
    dtype=torch.float32,
    *,
    return_z_loss=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
):
    """hidden [n, dim], weight [vocab, dim], target int64 [n]; logits exist for a few rows at a time only. Options as
    cross_entropy's, but that the loss is float32 unless dtype says another.

    float32_dweight: the weight's gradient is summed over chunks of rows in float32, as the CPU always does; a GPU takes
    4 * vocab * dim bytes and a few percent of the time for it.
    chunk_bytes: of logits at once, beside which little is needed but the gradients; 0: 256 MiB on a GPU, and 512 rows of
    float32 or 1024 of 16 bits on the CPU. Less is slower.
    """
    more = (ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling)
    options = _options(target, weight.shape[0], *more)
    returns = return_z_loss, return_token_accuracy, return_predicted_tokens
    predicts, inputs = return_token_accuracy or return_predicted_tokens, (hidden, weight, bias, target)
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs[:3])
    if not learns and not any(returns):
        return ops.linear_cross_entropy(*inputs, *options[:5], chunk_bytes, *options[5:]).to(dtype)
    frozen = not weight.requires_grad and (bias is None or not bias.requires_grad)
    if learns and frozen and reduction != "none":
        rows = max(1, (chunk_bytes or FROZEN_BYTES) // (weight.shape[0] * weight.element_size()))
        loss, lse, predicted = FrozenHead.apply(*inputs, rows, predicts, *options)
    else:
        wanted = reduction if learns else "none"  # which makes no gradients
        made = ops.linear_cross_entropy_fwd(
            *inputs, *options[:4], wanted, float32_dweight, chunk_bytes, *options[5:], predicts
        )
        loss, lse, predicted = made[0], made[1], made[5]
        if not learns:
            loss = _reduced(loss, target, ignore_index, reduction)
    loss = loss.to(dtype)
    if not any(returns):
        return loss

    def of_target(words):
        logit = (hidden * weight[words]).sum(1, dtype=torch.float32)
        return logit if bias is None else logit + bias[words]

    return _output(loss, lse, target, options, returns, lambda: predicted, of_target)


# ---- of a causal language model: label i + 1 is what position i must predict


def shifted(labels, shift_labels, ignore_index, device):
    """The targets of all positions, [batch * time]."""
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    return shift_labels.reshape(-1).to(device)


def per_item(result, items):
    """A sum, or the CrossEntropyOutput of one, divided by what the trainer counted; items None: it is a mean already."""
    if items is None:
        return result
    loss = result.loss if isinstance(result, CrossEntropyOutput) else result
    if torch.is_tensor(items):
        items = items.to(loss.device)
    if loss is result:
        return loss / items
    z_loss = None if result.z_loss is None else result.z_loss / items
    return replace(result, loss=loss / items, z_loss=z_loss)
