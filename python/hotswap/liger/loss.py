"""Liger's names for the losses: its arguments, our ops."""

import inspect

import torch
from torch import nn

from hotswap.core.arguments import check_accum_dtype
from hotswap.core.packages import load

_loss = load("loss")
CrossEntropyOutput = _loss.CrossEntropyOutput


def liger_cross_entropy(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
    lse_square_scale=0.0,
    softcap=None,
    return_z_loss=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
):
    """input [rows, vocab], target [rows] -> the loss in input's dtype, as torch's, or a CrossEntropyOutput."""
    for name, value in (("size_average", size_average), ("reduce", reduce)):
        if value is not None:
            raise NotImplementedError(f"liger_cross_entropy: expected {name}=None; got {value}; say it by reduction")
    return _loss.cross_entropy(
        input,
        target,
        ignore_index,
        label_smoothing,
        softcap or 0.0,
        lse_square_scale,
        reduction,
        class_weight=weight,
        return_z_loss=return_z_loss,
        return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens,
    )


def liger_fused_linear_cross_entropy(
    input,
    weight,
    target,
    bias=None,
    ce_weight=None,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    return_z_loss=False,
    accum_dtype=None,
    use_token_scaling=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
    chunk_mem_const=1,
):
    """input [rows, dim], weight [vocab, dim], target [rows] -> the loss in float32, or a CrossEntropyOutput.

    accum_dtype: float32, or None for the weight's own; what the weight's gradient is summed in. chunk_mem_const says how
    much memory Liger takes, and changes nothing here.
    """
    return _loss.linear_cross_entropy(
        input,
        weight,
        target,
        bias,
        ignore_index,
        label_smoothing,
        softcap or 0.0,
        lse_square_scale,
        reduction,
        float32_dweight=check_accum_dtype(accum_dtype),
        class_weight=ce_weight,
        token_scaling=use_token_scaling,
        return_z_loss=return_z_loss,
        return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens,
    )


_OPTIONS = inspect.signature(liger_fused_linear_cross_entropy).parameters.keys()


def LigerForCausalLMLoss(
    hidden_states,
    lm_head_weight,
    labels,
    hidden_size,
    num_items_in_batch=None,
    ignore_index=-100,
    shift_labels=None,
    final_logit_softcapping=None,
    return_token_accuracy=False,
    return_predicted_tokens=False,
    **kwargs,
):
    """The loss of the next tokens, as Liger's forwards of models call it: hidden_states [..., time, hidden_size]. Of **kwargs,
    those of a model's forward, liger_fused_linear_cross_entropy gets what it takes."""
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    result = liger_fused_linear_cross_entropy(
        hidden_states.reshape(-1, hidden_size),
        lm_head_weight,
        shift_labels.reshape(-1).to(hidden_states.device),
        ignore_index=ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum",
        softcap=final_logit_softcapping,
        return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens,
        **{name: value for name, value in kwargs.items() if name in _OPTIONS},
    )
    loss = result.loss if isinstance(result, CrossEntropyOutput) else result
    if num_items_in_batch is not None:
        loss = loss / num_items_in_batch
    if not (return_token_accuracy or return_predicted_tokens):
        return loss
    return CrossEntropyOutput(loss=loss, token_accuracy=result.token_accuracy, predicted_tokens=result.predicted_tokens)


def _check(label_smoothing, reduction, softcap):
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"expected label_smoothing in [0, 1]; got {label_smoothing}; 0 is none")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"expected reduction mean, sum or none; got {reduction!r}; pass one of them")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"expected softcap > 0 or None; got {softcap}; None is no cap")


class _Loss(nn.Module):
    """Its options are attributes, as Liger's are: `options` names those that the function takes at each call."""

    options: tuple

    def __init__(self, **options):
        super().__init__()
        _check(options["label_smoothing"], options["reduction"], options["softcap"])
        self.options = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def _given(self):
        return {name: getattr(self, name) for name in self.options}


class LigerCrossEntropyLoss(_Loss):
    def __init__(
        self,
        weight=None,
        ignore_index=-100,
        lse_square_scale=0.0,
        label_smoothing=0.0,
        reduction="mean",
        softcap=None,
        return_z_loss=False,
        return_token_accuracy=False,
        return_predicted_tokens=False,
    ):
        super().__init__(
            weight=weight,
            ignore_index=ignore_index,
            lse_square_scale=lse_square_scale,
            label_smoothing=label_smoothing,
            reduction=reduction,
            softcap=softcap,
            return_z_loss=return_z_loss,
            return_token_accuracy=return_token_accuracy,
            return_predicted_tokens=return_predicted_tokens,
        )

    def forward(self, _input, target):
        return liger_cross_entropy(_input, target, **self._given())


class LigerFusedLinearCrossEntropyLoss(_Loss):
    def __init__(
        self,
        ce_weight=None,
        ignore_index=-100,
        lse_square_scale=0.0,
        label_smoothing=0.0,
        reduction="mean",
        softcap=None,
        return_z_loss=False,
        accum_dtype=None,
        use_token_scaling=False,
        return_token_accuracy=False,
        return_predicted_tokens=False,
    ):
        check_accum_dtype(accum_dtype)
        super().__init__(
            ce_weight=ce_weight,
            ignore_index=ignore_index,
            lse_square_scale=lse_square_scale,
            label_smoothing=label_smoothing,
            reduction=reduction,
            softcap=softcap,
            return_z_loss=return_z_loss,
            accum_dtype=accum_dtype,
            use_token_scaling=use_token_scaling,
            return_token_accuracy=return_token_accuracy,
            return_predicted_tokens=return_predicted_tokens,
        )

    def forward(self, lin_weight, _input, target, bias=None):
        return liger_fused_linear_cross_entropy(_input, lin_weight, target, bias, **self._given())


LigerForCausalLMLossLayer = _loss.layers.ForCausalLMLoss
