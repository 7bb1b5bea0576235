"""Liger's distillation losses over two linear heads whose logits never exist whole: a student's, which learns, and a
teacher's, which does not. head.py does the chunks.

Arguments are Liger's. `compiled` and `chunk_size` only choose how Liger computes: they are taken and change nothing.
All is summed in float32. Words of the teacher beyond the student's vocabulary are left out of its distribution (Liger
gives the student's a logit of 0, and so a share of its probability).
"""

import torch
from torch import nn

from hotswap.core.packages import load
from hotswap.liger.head import Head, _loss, in_place, logits_loss

_probability = load("probability")


def _jsd(logits, teacher, beta, temperature):
    return _probability.jsd_of_logits_(logits, teacher, beta, temperature).sum()


def _cosine(logits, teacher, beta, temperature):  # the same at every temperature
    teacher = teacher.float()
    similarity = lambda student: nn.functional.cosine_similarity(student.float(), teacher, dim=-1)
    return in_place(lambda student: beta * (1 - similarity(student)).sum())(logits)


def _teacher_logits(hidden, weight, bias, vocab):
    """at -> the teacher's logits of these rows, for the student's vocabulary."""
    if len(weight) < vocab:
        raise ValueError(f"expected a teacher with the student's {vocab} words or more; got {len(weight)}; check the models")
    hidden = hidden.detach().reshape(-1, hidden.shape[-1])
    bias = None if bias is None else bias.detach()[:vocab].to(hidden.dtype)
    head = Head(hidden, weight.detach()[:vocab].to(hidden.dtype), bias)
    return lambda at: head.logits(at)[1]


class _Distillation(nn.Module):
    def __init__(
        self,
        weight_hard_loss=0.5,
        weight_soft_loss=0.5,
        beta=0.5,
        ignore_index=-100,
        temperature=1.0,
        compiled=True,
        chunk_size=1024,
        return_soft_hard_loss=False,
    ):
        super().__init__()
        _check(beta, temperature)
        self.weight_hard_loss, self.weight_soft_loss, self.beta = weight_hard_loss, weight_soft_loss, beta
        self.ignore_index, self.temperature = ignore_index, temperature
        self.return_soft_hard_loss = return_soft_hard_loss

    def forward(
        self,
        student_input,
        student_weight,
        teacher_input,
        teacher_weight,
        true_labels,
        student_bias=None,
        teacher_bias=None,
    ):
        """student_input, teacher_input [rows, dim of each], true_labels [rows]: the mean over rows that count of
        weight_hard_loss cross-entropy + weight_soft_loss divergence; with return_soft_hard_loss (that, divergence,
        cross-entropy)."""
        teacher = _teacher_logits(teacher_input, teacher_weight, teacher_bias, len(student_weight))
        target = true_labels.reshape(-1)
        with_hard = self.weight_hard_loss != 0 or self.return_soft_hard_loss

        def loss_of(logits, at):
            of_hard = logits.clone() if with_hard else None
            soft = self._soft(logits, teacher(at), self.beta, self.temperature)
            if self.weight_soft_loss != 1:
                logits.mul_(self.weight_soft_loss)
            if of_hard is None:
                return self.weight_soft_loss * soft, soft, torch.zeros_like(soft)
            hard = _loss.cross_entropy_(of_hard, target[at], self.ignore_index, reduction="sum")
            logits.add_(of_hard, alpha=self.weight_hard_loss)
            return self.weight_hard_loss * hard + self.weight_soft_loss * soft, soft, hard

        losses = logits_loss(loss_of, student_input, student_weight, student_bias, target, self.ignore_index)
        return losses if self.return_soft_hard_loss else losses[0]


class LigerFusedLinearJSDLoss(_Distillation):
    _soft = staticmethod(_jsd)


class LigerFusedLinearCosineSimilarityLoss(_Distillation):
    _soft = staticmethod(_cosine)


def _check(beta, temperature):
    if not 0 <= beta <= 1:
        raise ValueError(f"expected beta in [0, 1]; got {beta}; pass 0.5 for the symmetric divergence")
    if temperature <= 0:
        raise ValueError(f"expected temperature > 0; got {temperature}; 1 changes nothing")


def liger_fused_linear_jsd(
    student_input,
    student_weight,
    teacher_input,
    teacher_weight,
    shift_labels=None,
    jsd_beta=0.5,
    ignore_index=-100,
    temperature=1.0,
    accum_dtype=None,
):
    """The Jensen-Shannon divergence alone, a mean over rows whose label counts; accum_dtype: in which the gradient of
    student_weight is summed over chunks."""
    _check(jsd_beta, temperature)
    teacher = _teacher_logits(teacher_input, teacher_weight, None, len(student_weight))
    loss_of = lambda logits, at: (_jsd(logits, teacher(at), jsd_beta, temperature),)
    options = dict(ignore_index=ignore_index, dweight_dtype=accum_dtype)
    return logits_loss(loss_of, student_input, student_weight, None, shift_labels, **options)[0]


class LigerFusedLinearJSD(nn.Module):
    def __init__(self, jsd_beta=0.5, ignore_index=-100, temperature=1.0, accum_dtype=None):
        super().__init__()
        _check(jsd_beta, temperature)
        self.options = dict(
            jsd_beta=jsd_beta, ignore_index=ignore_index, temperature=temperature, accum_dtype=accum_dtype
        )

    def forward(self, student_input, student_weight, teacher_input, teacher_weight, shift_labels=None):
        return liger_fused_linear_jsd(
            student_input, student_weight, teacher_input, teacher_weight, shift_labels, **self.options
        )


__all__ = ["LigerFusedLinearJSD", "liger_fused_linear_jsd"]  # of liger_kernel.transformers; hotswap.chunked_loss has the others
