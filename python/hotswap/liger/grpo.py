"""Liger's GRPO loss and its kin (BNPO, Dr. GRPO, DAPO, CISPO, SAPO, LUSPO, VESPO; GSPO by importance_sampling_level
"sequence") over a linear head whose logits never exist whole, or on logits. As TRL's GRPOTrainer computes them.

Arguments are Liger's. `compiled`, `chunk_size` and `inplace` only choose how Liger computes: they change nothing.
Tokens that the mask leaves out count nowhere, whatever stands there; but for LUSPO, whose mean TRL takes over all.
"""

import math
import warnings
from typing import NamedTuple, Optional

import torch
from torch import distributed, nn

from hotswap.liger.head import Targets, _loss, rows_at_once, selected_logps, selected_loss

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


class Options(NamedTuple):
    beta: float = 0.04  # of the KL divergence from the reference
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    loss_type: str = "dapo"
    max_completion_length: Optional[int] = None
    importance_sampling_level: str = "token"
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    delta: Optional[float] = None
    use_bias_correction_kl: bool = False
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0

    def check(self):
        if self.loss_type not in LOSS_TYPES:
            known = ", ".join(LOSS_TYPES)
            raise ValueError(f"Unknown loss type: expected one of {known}; got {self.loss_type}; pass one of them")
        if self.importance_sampling_level not in ("token", "sequence"):
            got = self.importance_sampling_level
            raise ValueError(f"Unknown importance sampling level: expected token or sequence; got {got}; pass one of them")
        if self.importance_sampling_level == "sequence" and self.loss_type in ("cispo", "sapo", "vespo"):
            raise ValueError(
                f"Sequence-level importance sampling is not supported for loss_type='{self.loss_type}': pass "
                "importance_sampling_level='token'"
            )
        count = ("sapo_temperature_pos", "sapo_temperature_neg") if self.loss_type == "sapo" else ("delta",)
        for name in count:
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}; leave it out to take its default")


class Batch(NamedTuple):
    mask: torch.Tensor  # [batch, time] float32
    advantages: torch.Tensor  # [batch, 1]
    old: Optional[torch.Tensor]  # [batch, time] log-probabilities when the tokens were drawn; None: those of now
    reference: Optional[torch.Tensor]  # [batch, time]
    ratio: Optional[torch.Tensor]  # [batch, 1 or time]: by what the drawing engine's probabilities differ
    divisor: Optional[torch.Tensor]  # of the sum over tokens, where the loss is one


def _batch(mask, advantages, old, reference, ratio, divisor, keep=False):
    if ratio is not None:
        shapes = [(len(mask),), (len(mask), 1), tuple(mask.shape)]
        if tuple(ratio.shape) not in shapes:
            wanted = f"{shapes[0]}, {shapes[1]} or {shapes[2]}"
            raise ValueError(f"expected vllm_is_ratio of shape {wanted}; got {tuple(ratio.shape)}; reshape it")
        ratio = ratio.float().reshape(len(mask), -1)
    blank = lambda t: None if t is None else t.float() if keep else t.float().masked_fill(mask == 0, 0.0)
    return Batch(mask.float(), advantages.float().reshape(-1, 1), blank(old), blank(reference), ratio, divisor)


def _gamma_weight(o, b, log_ratio):
    """VESPO's weight of a sequence, [batch, 1]: e^l w^k e^(-l w) of its importance ratio w. No gradient."""
    least = math.log(1e-8)
    with torch.no_grad():
        log_w = (log_ratio.clamp(-20, 20) * b.mask).sum(-1, keepdim=True)
        if b.ratio is not None:
            log_w = log_w + b.ratio.log().clamp(least, 20).sum(-1, keepdim=True)
        log_w = log_w.clamp(least, 20)
        k = torch.where(b.advantages >= 0, o.vespo_k_pos, o.vespo_k_neg)
        rate = torch.where(b.advantages >= 0, o.vespo_lambda_pos, o.vespo_lambda_neg).clamp(min=1e-4)
        return (rate + k * log_w - rate * log_w.exp()).exp().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _surrogate(o, b, logps, log_ratio, log_weight):
    """(loss of each token, which ratios are below and above their bounds); [batch, time], or [batch, 1] of sequences."""
    weight, none = log_weight.exp(), torch.zeros_like(log_weight, dtype=torch.bool)
    if o.loss_type == "cispo":  # the clipped weight only scales
        return -weight.clamp(max=o.epsilon_high).detach() * b.advantages * logps, none, weight > o.epsilon_high
    if o.loss_type == "sapo":  # a soft gate for the clip
        t = torch.where(b.advantages > 0, o.sapo_temperature_pos, o.sapo_temperature_neg)
        return -torch.sigmoid(t * (weight - 1)) * 4 / t * b.advantages, none, none
    if o.loss_type == "vespo":
        return -_gamma_weight(o, b, log_ratio) * b.advantages * logps, none, none
    clipped = weight.clamp(1 - o.epsilon_low, 1 + o.epsilon_high)
    bounded = weight if o.delta is None else weight.clamp(max=o.delta)
    losses = -torch.min(bounded * b.advantages, clipped * b.advantages)
    return losses, weight < 1 - o.epsilon_low, weight > 1 + o.epsilon_high


def _tokens_of_a_process(mask, items):
    """What DAPO divides by: the tokens that count in all processes (`items`, those of the generation's batches), by their
    number."""
    several = distributed.is_available() and distributed.is_initialized()
    if items is not None:
        tokens = torch.as_tensor(items, dtype=torch.float32, device=mask.device)
    else:
        tokens = mask.sum()
        if several:
            distributed.all_reduce(tokens)
    return (tokens / (distributed.get_world_size() if several else 1)).clamp(min=1)


def _divisor(o, mask, items):
    """Of the losses' sum, once a step: it may wait for the other processes."""
    if o.loss_type in ("grpo", "sapo", "luspo"):
        return None  # means of answers
    if o.loss_type == "bnpo":
        return mask.sum().clamp(min=1)
    if o.loss_type == "dr_grpo":
        return len(mask) * o.max_completion_length
    return _tokens_of_a_process(mask, items)


def _reduced(o, b, losses):
    if o.loss_type in ("grpo", "sapo"):
        return ((losses * b.mask).sum(-1) / b.mask.sum(-1).clamp(min=1)).mean()
    if o.loss_type == "luspo":
        return (losses * b.mask.sum(-1, keepdim=True)).mean()
    return (losses * b.mask).sum() / b.divisor


def _by_token(o, b, logps):
    """[batch, time] each: loss, KL divergence from the reference (None without beta), whether clipped."""
    log_ratio = logps - (logps.detach() if b.old is None else b.old)
    log_weight = log_ratio
    if o.importance_sampling_level == "sequence":
        log_weight = (log_ratio * b.mask).sum(-1, keepdim=True) / b.mask.sum(-1, keepdim=True).clamp(min=1)
    losses, low, high = _surrogate(o, b, logps, log_ratio, log_weight)
    if b.ratio is not None and o.loss_type != "vespo":
        losses = losses * b.ratio
    kl = None
    if o.beta != 0:
        away = (logps.detach() if b.reference is None else b.reference) - logps
        kl = torch.expm1(away) - away
        if o.use_bias_correction_kl:
            kl = kl * log_weight.exp()
        losses = losses + o.beta * kl
    clipped = (low & (b.advantages < 0)) | (high & (b.advantages > 0))
    return losses.expand_as(b.mask), kl, clipped.expand_as(b.mask)


def _loss_of(o, b, logps):
    """(loss, mean KL divergence where there is one, share of clipped tokens)"""
    losses, *measured = _by_token(o, b, logps)
    tokens = b.mask.sum().clamp(min=1)
    return _reduced(o, b, losses), *((m * b.mask).sum() / tokens for m in measured if m is not None)


class LigerFusedLinearGRPOLoss(nn.Module):
    def __init__(
        self,
        beta=0.04,
        compiled=True,
        use_ref_model=True,
        chunk_size=1,
        epsilon_low=0.2,
        epsilon_high=0.2,
        loss_type="dapo",
        max_completion_length=None,
        importance_sampling_level="token",
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        temperature=1.0,
        delta=None,
        use_bias_correction_kl=False,
        vespo_k_pos=2.0,
        vespo_lambda_pos=3.0,
        vespo_k_neg=3.0,
        vespo_lambda_neg=2.0,
    ):
        super().__init__()
        given = locals()
        self.options = Options(**{name: given[name] for name in Options._fields})
        self.options.check()
        if loss_type == "dr_grpo" and max_completion_length is None:
            raise ValueError(
                "max_completion_length must be provided for loss_type 'dr_grpo'; got None; pass that of the generation"
            )
        self.use_ref_model, self.temperature = use_ref_model, temperature

    def forward(
        self,
        _input,
        lin_weight,
        selected_token_ids,
        attention_mask,
        advantages,
        bias=None,
        ref_per_token_logps=None,
        old_per_token_logps=None,
        ref_input=None,
        ref_weight=None,
        ref_bias=None,
        vllm_is_ratio=None,
        num_items_in_batch=None,
    ):
        """_input [batch, time, dim], selected_token_ids and attention_mask [batch, time], advantages [batch]. Returns loss,
        (mean KL divergence where beta is not 0, share of clipped tokens)."""
        if tuple(_input.shape[:2]) != tuple(selected_token_ids.shape) or attention_mask.shape != selected_token_ids.shape:
            got = ", ".join(str(list(t.shape)) for t in (_input, selected_token_ids, attention_mask))
            raise ValueError(f"expected [batch, time, dim], [batch, time] and [batch, time]; got {got}; reshape them")
        options = self.options
        everywhere = options.loss_type == "luspo"
        target = selected_token_ids if everywhere else selected_token_ids.masked_fill(attention_mask == 0, -100)
        by_row = options.importance_sampling_level == "token" and options.loss_type != "vespo"
        groups = "rows" if by_row else [(k,) for k in range(len(target))]
        targets = Targets(target.to(_input.device), groups=groups)
        reference = ref_per_token_logps if self.use_ref_model else None
        if reference is not None and ref_input is not None:
            warnings.warn("expected ref_per_token_logps or ref_input; got both. Using ref_per_token_logps.", stacklevel=2)
        if self.use_ref_model and reference is None and options.beta != 0:
            if ref_input is None:
                raise ValueError("expected ref_per_token_logps or ref_input, as use_ref_model is on; got neither; pass one")
            reference = selected_logps(ref_input, ref_weight, ref_bias, targets, temperature=self.temperature)
        divisor = _divisor(options, attention_mask.float(), num_items_in_batch)
        batch = _batch(attention_mask, advantages, old_per_token_logps, reference, vllm_is_ratio, divisor, everywhere)
        loss, *metrics = selected_loss(
            lambda logps: _loss_of(options, batch, logps), _input, lin_weight, bias, targets, temperature=self.temperature
        )
        return loss, tuple(metrics)


def triton_grpo_loss(
    logits,
    old_logp,
    ref_logp,
    completion_ids,
    advantages,
    completion_mask=None,
    temperature=0.9,
    beta=0.04,
    eps_low=0.2,
    eps_high=0.4,
    inplace=True,
    loss_type="dapo",
    max_completion_length=None,
    importance_sampling_level="token",
    reduce=False,
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
    vllm_is_ratio=None,
    delta=None,
    use_bias_correction_kl=False,
    num_items_in_batch=None,
    vespo_k_pos=2.0,
    vespo_lambda_pos=3.0,
    vespo_k_neg=3.0,
    vespo_lambda_neg=2.0,
):
    """Liger's, by another means than its name says. logits [batch, time + 1, vocab] (the last of each is left out),
    completion_ids [batch, time]. Returns (loss, [mean KL where beta is not 0, share of clipped]) with reduce, else each
    token's (loss, KL, whether clipped)."""
    if max_completion_length is None:
        max_completion_length = completion_ids.shape[1]
    given = {**locals(), "epsilon_low": eps_low, "epsilon_high": eps_high}
    options = Options(**{name: given[name] for name in Options._fields})
    options.check()
    if beta != 0 and ref_logp is None:
        raise ValueError("expected ref_logp, as beta is not 0; got none; pass it, or beta=0")
    mask = torch.ones_like(completion_ids) if completion_mask is None else completion_mask
    everywhere = loss_type == "luspo"
    target = completion_ids if everywhere else completion_ids.masked_fill(mask == 0, -100)
    rows = logits[:, :-1].reshape(-1, logits.shape[-1])
    if temperature != 1:
        rows = rows / temperature
    logps = -_loss.cross_entropy(rows, target.reshape(-1), reduction="none").view(target.shape)
    divisor = _divisor(options, mask.float(), num_items_in_batch) if reduce else None
    batch = _batch(mask, advantages, old_logp, ref_logp, vllm_is_ratio, divisor, everywhere)
    if reduce:
        loss, *metrics = _loss_of(options, batch, logps)
        return loss, [m.detach() for m in metrics]
    losses, *measured = _by_token(options, batch, logps)
    return losses if everywhere else losses * batch.mask, *measured


@torch.no_grad()
def fused_selective_log_softmax(logits, input_ids, temperature=0.9, mask=None):
    """Log-probabilities [batch, time], float32, of the last `time` of input_ids under logits [batch, time + 1, vocab] /
    temperature (the last of each is left out); 0 where mask is. No gradient, as in Liger. Float32 copies of a chunk of rows
    exist at a time."""
    batch, time, vocab = logits.shape[0], logits.shape[1] - 1, logits.shape[2]
    target = input_ids[:, input_ids.shape[1] - time :]
    if mask is not None:
        target = target.masked_fill(mask[:, mask.shape[1] - time :] == 0, -100)
    logps = torch.empty(batch, time, dtype=torch.float32, device=logits.device)
    most = rows_at_once(logits.device, 4 * vocab)
    for of_row, rows, targets in zip(logps, logits, target):
        for out, some, wanted in zip(of_row.split(most), rows[:time].split(most), targets.split(most)):
            scaled = some.float() / temperature
            out.copy_(-_loss.cross_entropy(scaled, wanted.contiguous(), reduction="none"))
    return logps


__all__ = ["fused_selective_log_softmax", "triton_grpo_loss"]  # of liger_kernel.transformers; hotswap.chunked_loss has the others
