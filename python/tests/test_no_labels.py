"""An update in which no label counts (padding alone, a cut prompt): every gradient is 0, as torch's is, whatever the loss
is divided or multiplied by, so that the step changes nothing. A mean over no row is nan, as torch's; Liger's losses of
pairs, policies and teachers are 0."""

import math

import pytest
import torch
from chunked import seeded  # noqa: F401
from tiny import model as tiny_model
from torch.nn import functional as F

import hotswap
from hotswap.core.packages import load
from hotswap.liger import chunked_loss

IGNORED, ROWS, DIM, VOCAB = -100, 6, 8, 11
# What the loss is multiplied by: an average over steps, a sum over none of them (1 / 0), what became of an overflow.
FACTORS = (1.0, 0.25, math.inf, math.nan)
OPTIONS = {
    "plain": {},
    "smoothed": dict(label_smoothing=0.1),
    "z-loss, softcap": dict(z_loss=1e-2, softcap=5.0),
    "weighted, smoothed": dict(class_weight=torch.rand(VOCAB) + 0.5, label_smoothing=0.1),
    "token scaling": dict(token_scaling=True),
}
loss = load("loss")
target = torch.full((ROWS,), IGNORED)


def zero_gradients(loss, inputs, factor):
    for gradient in torch.autograd.grad(loss * factor, inputs, torch.ones_like(loss), retain_graph=True):
        assert torch.equal(gradient, torch.zeros_like(gradient)), f"times {factor}: {gradient}"


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cross_entropy(dtype, reduction, options):
    logits = torch.randn(ROWS, VOCAB, dtype=dtype, requires_grad=True)
    hidden, weight = (torch.randn(n, DIM, dtype=dtype, requires_grad=True) for n in (ROWS, VOCAB))
    bias = torch.randn(VOCAB, dtype=dtype, requires_grad=True)
    want = F.cross_entropy(logits, target, reduction=reduction)
    options = {**options, "reduction": reduction}
    for gradient_in_forward in (False, True):
        got = loss.cross_entropy(logits, target, **options, gradient_in_forward=gradient_in_forward)
        assert torch.equal(got.isnan(), want.isnan()) and not got.nan_to_num().any()
        for factor in FACTORS:
            zero_gradients(got, [logits], factor)
    for frozen in (False, True):
        inputs = [hidden] if frozen else [hidden, weight, bias]
        others = [t.detach() if frozen else t for t in (weight, bias)]
        got = loss.linear_cross_entropy(hidden, others[0], target, others[1], **options)
        assert torch.equal(got.isnan(), want.isnan()) and not got.nan_to_num().any()
        for factor in FACTORS:
            zero_gradients(got, inputs, factor)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def distilled(name, **options):
    teacher = torch.randn(ROWS, DIM), torch.randn(VOCAB, DIM)
    return lambda x, w: getattr(chunked_loss, name)(x, w, *teacher, target, **options)


def preferred(name, *more, **options):
    pairs = target.view(2, ROWS // 2)
    return lambda x, w: getattr(chunked_loss, name)(x.view(2, ROWS // 2, DIM), w, pairs, *more, **options)[0]


def policy(loss_type, level="token"):
    words, mask = torch.randint(VOCAB, (2, ROWS // 2)), torch.zeros(2, ROWS // 2, dtype=torch.int64)
    options = dict(ref_per_token_logps=torch.randn(2, ROWS // 2), old_per_token_logps=torch.randn(2, ROWS // 2))
    options.update(loss_type=loss_type, importance_sampling_level=level, max_completion_length=3)
    advantages = torch.tensor([1.0, -1.0])
    return lambda x, w: chunked_loss.liger_fused_linear_grpo(x.view(2, -1, DIM), w, words, mask, advantages, **options)[0]


CHUNKED = {
    "jsd, cross-entropy": distilled("liger_fused_linear_jsd"),
    "jsd": distilled("liger_fused_linear_jsd", weight_hard_loss=0.0),
    "cosine": distilled("liger_fused_linear_cosine"),
    "jsd alone": lambda x, w: hotswap.liger_fused_linear_jsd(x, w, x.detach(), w.detach(), target),
    "cpo": preferred("liger_fused_linear_cpo"),
    "simpo": preferred("liger_fused_linear_simpo", compute_nll_loss=True),
    "orpo": preferred("liger_fused_linear_orpo"),
    "orpo, other labels": preferred("liger_fused_linear_orpo", nll_target=target.view(2, -1)),
    "dpo": preferred("liger_fused_linear_dpo", use_ref_model=False, compute_nll_loss=True),
    "dpo, averaged": preferred("liger_fused_linear_dpo", use_ref_model=False, average_log_prob=True),
    "kto": preferred("liger_fused_linear_kto", torch.tensor([True, False]), use_ref_model=False),
    **{f"policy, {name}": policy(name) for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")},
    "policy, grpo, sequences": policy("grpo", "sequence"),
}


@pytest.mark.parametrize("loss_of", CHUNKED.values(), ids=CHUNKED.keys())
def test_losses_over_a_head(loss_of):
    hidden, weight = leaf(ROWS, DIM), leaf(VOCAB, DIM)
    got = loss_of(hidden, weight)
    assert got.isfinite()
    for factor in FACTORS:
        zero_gradients(got, [hidden, weight], factor)


@pytest.mark.parametrize("reduction", ["batchmean", "mean", "sum", "none"])
@pytest.mark.parametrize("name", ["kl_div", "jsd", "tvd"])
def test_divergences(name, reduction):
    probability, x = load("probability"), leaf(ROWS, VOCAB)
    rows = x.softmax(-1) if name == "tvd" else x.log_softmax(-1)
    other = torch.randn(ROWS, VOCAB).softmax(-1)
    got = getattr(probability, name)(rows, other.log() if name == "jsd" else other, target, reduction=reduction)
    assert not got.any()
    for factor in FACTORS:
        zero_gradients(got, [rows], factor)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("items", [None, 0.0, torch.tensor(0)])
def test_a_step_of_a_model_changes_nothing(fused, frozen, items):
    if isinstance(items, float):
        items = torch.tensor(items)  # stock's own division by the number 0 is Python's error
    results = []
    for swapped in (False, True):
        torch.manual_seed(0)
        model = tiny_model("llama").train()
        if swapped:
            hotswap.kernelize(model, fused_linear_cross_entropy=fused)
        model.lm_head.weight.requires_grad_(not frozen)
        ids = torch.randint(3, model.config.vocab_size, (2, 9))
        given = {} if items is None else {"num_items_in_batch": items}
        loss = model(input_ids=ids, labels=torch.full_like(ids, IGNORED), **given).loss
        loss.backward()
        results.append(loss.detach())
        for name, p in model.named_parameters():
            assert p.grad is None or not p.grad.any(), name
    assert torch.equal(*(r.isnan() for r in results))
