"""Liger's preference losses over a linear head whose logits never exist whole: DPO, CPO, SimPO, ORPO of pairs, KTO of
single answers. Each is a few lines on the answers' log-probabilities; head.py does the rest.

Arguments are Liger's. `compiled` and `chunk_size` only choose how Liger computes: they are taken and change nothing.
An answer without a token that counts has log-probability 0, averaged or not (Liger: nan).
"""

import math

import torch
from torch import nn
from torch.nn.functional import logsigmoid, relu, sigmoid

from hotswap.liger.head import Targets, _loss, selected_logps, selected_loss, sums_of_logits


def _of_answers(logps, target, ignore_index, average):
    """logps [answers, time] of tokens -> [answers] of answers."""
    total = logps.sum(-1)
    return total / (target != ignore_index).sum(-1).clamp(min=1) if average else total


def _check_rows(target, hidden, what):
    if hidden is None or tuple(hidden.shape[:2]) != tuple(target.shape):
        got = None if hidden is None else list(hidden.shape)
        raise ValueError(f"expected {what} [answers, time, dim] for target {list(target.shape)}; got {got}; reshape it")


def _reference(hidden, weight, bias, ref_logps, targets, of_answers):
    """[answers] log-probabilities under the reference model: `ref_logps`, where they were made before, or of its head."""
    if ref_logps is None:
        if hidden is None:
            raise ValueError("expected ref_input and ref_weight, or ref_logps; got neither; pass one, or use_ref_model=False")
        _check_rows(targets, hidden, "ref_input")
        return of_answers(selected_logps(hidden, weight, bias, targets))
    if hidden is not None:
        raise ValueError("expected ref_input or ref_logps; got both; pass one of them")
    if tuple(ref_logps.shape) != (targets.shape[0],):
        got = list(ref_logps.shape)
        raise ValueError(f"expected ref_logps [{targets.shape[0]}], one an answer; got {got}; sum or average its tokens'")
    return ref_logps.detach().to(targets.flat.device, torch.float32)


def _pairs(
    loss_of,  # (chosen [pairs], rejected [pairs]: log-probabilities, of the reference subtracted) -> (loss, *others)
    hidden,
    weight,
    target,
    bias,
    *,
    ignore_index,
    alpha=1.0,
    compute_nll_loss,
    nll_target=None,
    average_log_prob,
    reference=None,  # (hidden, weight, bias, ref_logps) of another model
):
    """hidden [2 pairs, time, dim], chosen answers first. Returns loss, (log-probabilities of chosen and rejected answers,
    means of their logits, nll, *others)."""
    _check_rows(target, hidden, "hidden states")
    if len(target) % 2:
        raise ValueError(f"expected chosen answers and as many rejected ones; got {len(target)} in all; check the batch")
    pairs, target = len(target) // 2, target.to(hidden.device)
    targets = Targets(target, ignore_index, groups=[(k, k + pairs) for k in range(pairs)])
    of_answers = lambda logps: _of_answers(logps, target, ignore_index, average_log_prob)
    known = 0.0 if reference is None else _reference(*reference, targets, of_answers)
    own_nll = compute_nll_loss and nll_target is None
    tokens = (target[:pairs] != ignore_index).sum().clamp(min=1)

    def loss_of_logps(logps):
        answers = of_answers(logps)
        loss, *others = loss_of(*(answers - known).split(pairs))
        nll = -logps[:pairs].sum() / tokens if own_nll else torch.zeros_like(loss)
        return loss + alpha * nll, *answers.split(pairs), nll, *others

    loss, chosen, rejected, nll, *others = selected_loss(loss_of_logps, hidden, weight, bias, targets)
    if compute_nll_loss and nll_target is not None:  # other labels of the same rows: a loss of its own
        labels = nll_target.reshape(len(target), -1)[:pairs].reshape(-1)
        rows = hidden[:pairs].reshape(-1, hidden.shape[-1])
        nll = _loss.linear_cross_entropy(rows, weight, labels, bias, ignore_index, reduction="sum")
        nll = nll / (labels != ignore_index).sum().clamp(min=1)
        loss, nll = loss + alpha * nll, nll.detach()
    logits = target[:pairs].numel() * weight.shape[0]
    means = [half.sum() / logits for half in sums_of_logits(hidden, weight, bias).split(pairs)]
    return loss, (chosen, rejected, *means, nll, *others)


# ---- DPO: on the difference of log-probabilities to a reference's ---------------------------------------------------


def _discopop(d, tau):
    w = sigmoid(d / tau)
    return -logsigmoid(d) * (1 - w) + torch.exp(-d) * w


def _exo_pair(d, smoothing):
    won, lost = math.log1p(-smoothing), math.log(smoothing)
    return sigmoid(d) * (logsigmoid(d) - won) + sigmoid(-d) * (logsigmoid(-d) - lost)


# of c, r: beta (log pi - log ref) of the chosen and of the rejected answer
DPO_LOSSES = {
    "sigmoid": lambda c, r, o: -logsigmoid(c - r),
    "hinge": lambda c, r, o: relu(1 - (c - r)),
    "exo_pair": lambda c, r, o: _exo_pair(c - r, o.label_smoothing),
    "nca_pair": lambda c, r, o: -logsigmoid(c) - 0.5 * logsigmoid(-c) - 0.5 * logsigmoid(-r),
    "robust": lambda c, r, o: (
        (o.label_smoothing * logsigmoid(r - c) - (1 - o.label_smoothing) * logsigmoid(c - r)) / (1 - 2 * o.label_smoothing)
    ),
    "bco_pair": lambda c, r, o: -logsigmoid(c) - logsigmoid(-r),
    "sppo_hard": lambda c, r, o: ((c - 0.5) / o.beta) ** 2 + ((r + 0.5) / o.beta) ** 2,
    "apo_zero": lambda c, r, o: 1 - sigmoid(c) + sigmoid(r),
    "apo_down": lambda c, r, o: sigmoid(c) + 1 - sigmoid(c - r),
    "discopop": lambda c, r, o: _discopop(c - r, o.discopop_tau),
}


class LigerFusedLinearDPOLoss(nn.Module):
    def __init__(
        self,
        ignore_index=-100,
        beta=0.1,
        alpha=1.0,
        compute_nll_loss=False,
        compiled=True,
        use_ref_model=True,
        average_log_prob=False,
        chunk_size=1,
        loss_type="sigmoid",
        label_smoothing=0.0,
        discopop_tau=0.05,
    ):
        super().__init__()
        if loss_type not in DPO_LOSSES:
            raise ValueError(f"Unsupported loss_type: expected one of {', '.join(DPO_LOSSES)}; got {loss_type}; pass one of them")
        if loss_type == "exo_pair" and not 0 < label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be > 0 for loss_type='exo_pair', and < 1; got {label_smoothing}; its paper takes 1e-3"
            )
        if loss_type == "robust" and not 0 <= label_smoothing < 0.5:
            raise ValueError(
                f"label_smoothing must lie in [0.0, 0.5) for loss_type='robust'; got {label_smoothing}; 0 is none"
            )
        self.ignore_index, self.beta, self.alpha, self.compute_nll_loss = ignore_index, beta, alpha, compute_nll_loss
        self.use_ref_model, self.average_log_prob = use_ref_model, average_log_prob
        self.loss_type, self.label_smoothing, self.discopop_tau = loss_type, label_smoothing, discopop_tau

    def _loss(self, chosen, rejected):
        c, r = self.beta * chosen, self.beta * rejected
        return DPO_LOSSES[self.loss_type](c, r, self).mean(), c, r

    def forward(
        self, lin_weight, _input, target, bias=None, ref_input=None, ref_weight=None, ref_bias=None, *, ref_logps=None
    ):  # fmt: skip
        """ref_logps [answers]: the answers' log-probabilities under the reference model, made beforehand (averaged with
        average_log_prob), in place of its hidden states and head."""
        return _pairs(
            self._loss, _input, lin_weight, target, bias,
            ignore_index=self.ignore_index, alpha=self.alpha, compute_nll_loss=self.compute_nll_loss,
            average_log_prob=self.average_log_prob,
            reference=(ref_input, ref_weight, ref_bias, ref_logps) if self.use_ref_model else None,
        )  # fmt: skip


# ---- without a reference --------------------------------------------------------------------------------------------


class LigerFusedLinearCPOLoss(nn.Module):
    margin = 0.0

    def __init__(
        self,
        ignore_index=-100,
        beta=0.1,
        alpha=1.0,
        label_smoothing=0.0,
        compute_nll_loss=True,
        compiled=True,
        average_log_prob=False,
        chunk_size=1,
    ):
        super().__init__()
        self.ignore_index, self.beta, self.alpha, self.label_smoothing = ignore_index, beta, alpha, label_smoothing
        self.compute_nll_loss, self.average_log_prob = compute_nll_loss, average_log_prob

    def _loss(self, chosen, rejected):
        d, eps = self.beta * (chosen - rejected) - self.margin, self.label_smoothing
        losses = -logsigmoid(d) * (1 - eps) - logsigmoid(-d) * eps
        return losses.mean(), self.beta * chosen, self.beta * rejected

    def forward(self, lin_weight, _input, target, bias=None):
        return _pairs(
            self._loss, _input, lin_weight, target, bias,
            ignore_index=self.ignore_index, alpha=self.alpha, compute_nll_loss=self.compute_nll_loss,
            average_log_prob=self.average_log_prob,
        )  # fmt: skip


class LigerFusedLinearSimPOLoss(LigerFusedLinearCPOLoss):
    """CPO of averaged log-probabilities, by a margin gamma."""

    def __init__(
        self,
        ignore_index=-100,
        beta=0.1,
        alpha=1.0,
        label_smoothing=0.0,
        compute_nll_loss=True,
        compiled=True,
        gamma=0.5,
        chunk_size=1,
    ):
        super().__init__(ignore_index, beta, alpha, label_smoothing, compute_nll_loss, average_log_prob=True)
        self.margin = gamma


class LigerFusedLinearORPOLoss(nn.Module):
    def __init__(self, ignore_index=-100, beta=0.1, compute_nll_loss=True, compiled=True, chunk_size=1):
        super().__init__()
        self.ignore_index, self.beta, self.compute_nll_loss = ignore_index, beta, compute_nll_loss

    def _loss(self, chosen, rejected):
        log_odds = [p - torch.log(-torch.expm1(p)) for p in (chosen, rejected)]  # log p / (1 - p)
        empty = (chosen == 0) & (rejected == 0)  # two answers without a token, whose odds are both infinite
        ratio = torch.where(empty, 0.0, log_odds[0] - log_odds[1])
        of_ratio = logsigmoid(ratio).mean()
        return -self.beta * of_ratio, self.beta * chosen, self.beta * rejected, of_ratio, ratio.mean()

    def forward(self, lin_weight, _input, target, bias=None, nll_target=None):
        return _pairs(
            self._loss, _input, lin_weight, target, bias,
            ignore_index=self.ignore_index, compute_nll_loss=self.compute_nll_loss, nll_target=nll_target,
            average_log_prob=True,
        )  # fmt: skip


# ---- KTO: answers one by one, each good or bad ----------------------------------------------------------------------


class LigerFusedLinearKTOLoss(nn.Module):
    def __init__(
        self, ignore_index=-100, beta=0.1, compiled=True, use_ref_model=False, average_log_prob=False, chunk_size=1
    ):
        super().__init__()
        self.ignore_index, self.beta = ignore_index, beta
        self.use_ref_model, self.average_log_prob = use_ref_model, average_log_prob

    def forward(
        self,
        _input,
        lin_weight,
        target,
        bias=None,
        preference_labels=None,
        ref_input=None,
        ref_weight=None,
        ref_bias=None,
        kl=None,
        *,
        ref_logps=None,
    ):
        """_input [answers, time, dim], preference_labels [answers], kl one number or one an answer, ref_logps as DPO's.
        Returns loss, sums over (good answers, bad ones) of log-probabilities, logits and rewards."""
        _check_rows(target, _input, "hidden states")
        if preference_labels is None or preference_labels.shape != target.shape[:1]:
            raise ValueError(f"expected preference_labels [{len(target)}], one an answer; got {preference_labels}; pass them")
        target, known = target.to(_input.device), 0.0
        good = preference_labels.to(target.device, torch.bool)
        targets = Targets(target, self.ignore_index, groups=[(k,) for k in range(len(target))])
        of_answers = lambda logps: _of_answers(logps, target, self.ignore_index, self.average_log_prob)
        if self.use_ref_model:
            known = _reference(ref_input, ref_weight, ref_bias, ref_logps, targets, of_answers)

        def loss_of_logps(logps):
            answers = of_answers(logps)
            ratio = answers - known
            gain = self.beta * (ratio if kl is None else ratio - kl)
            loss = (1 - sigmoid(torch.where(good, gain, -gain))).mean()
            return loss, *of_both(answers), *of_both(self.beta * ratio)

        of_both = lambda of_answer: [torch.where(which, of_answer, 0).sum() for which in (good, ~good)]
        loss, *sums = selected_loss(loss_of_logps, _input, lin_weight, bias, targets)
        logits = of_both(sums_of_logits(_input, lin_weight, bias))
        return loss, (*sums[:2], *logits, *sums[2:])
