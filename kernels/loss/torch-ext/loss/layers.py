import torch
from torch import nn

from . import _package
from ._ops import ops


class ForCausalLMLoss(_package.Layer):
    """transformers' ForCausalLMLoss on logits as they are: no float32 copy is made of them."""

    def forward(
        self, logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **kwargs
    ):
        if shift_labels is None:
            shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        target = shift_labels.reshape(-1).to(logits.device)
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss = ops.cross_entropy_fwd(
            logits.view(-1, vocab_size), target, ignore_index, 0.0, 0.0, 0.0, reduction
        )[0]
        if num_items_in_batch is None:
            return loss
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        return loss / num_items_in_batch


LigerForCausalLMLossLayer = ForCausalLMLoss


class CrossEntropy(_package.Layer):
    def forward(
        self, logits, target, ignore_index=-100, label_smoothing=0.0, softcap=0.0, z_loss=0.0, reduction="mean"
    ):
        return ops.cross_entropy_fwd(logits, target, ignore_index, label_smoothing, softcap, z_loss, reduction)[0]


class LinearCrossEntropy(_package.Layer):
    def forward(
        self,
        hidden,
        weight,
        target,
        bias=None,
        ignore_index=-100,
        label_smoothing=0.0,
        softcap=0.0,
        z_loss=0.0,
        reduction="mean",
    ):
        options = (ignore_index, label_smoothing, softcap, z_loss, reduction)
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (hidden, weight, bias)):
            return ops.linear_cross_entropy_fwd(hidden, weight, bias, target, *options)[0]
        return ops.linear_cross_entropy(hidden, weight, bias, target, *options)
