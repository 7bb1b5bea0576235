"""Preference losses over a linear head in chunks: each against its own formula on whole float64 logits."""

import pytest
import torch
from chunked import LIMIT, Largest, Products, close, head_and_rows, leaves, seeded, small_chunks  # noqa: F401
from torch.nn import functional as F

from hotswap.liger import chunked_loss

PAIRS, TIME, DIM, VOCAB = 3, 5, 16, 37


def targets():
    target = torch.randint(VOCAB, (2 * PAIRS, TIME))
    target[::2, 3:] = target[1, 0] = -100
    return target


def answers(hidden, weight, bias, target, average):
    """[answers] log-probabilities, [answers, time] those of tokens, all logits; float64."""
    logits = F.linear(hidden.double(), weight.double(), None if bias is None else bias.double())
    counts = target != -100
    tokens = logits.log_softmax(-1).gather(-1, target.clamp(min=0)[..., None])[..., 0] * counts
    return tokens.sum(-1) / (counts.sum(-1) if average else 1), tokens, logits


def pairs(formula, average=False, nll=False, alpha=1.0, reference=None):
    """The whole of a loss of pairs: (loss, its metrics)."""

    def whole(hidden, weight, target, bias):
        of_answers, tokens, logits = answers(hidden, weight, bias, target, average)
        known = 0 if reference is None else answers(*reference, target, average)[0]
        loss, *others = formula(*(of_answers - known).split(PAIRS))
        nll_loss = -tokens[:PAIRS].sum() / (target[:PAIRS] != -100).sum() if nll else torch.tensor(0.0)
        means = [half.mean() for half in logits.split(PAIRS)]
        return loss + alpha * nll_loss, (*of_answers.split(PAIRS), *means, nll_loss, *others)

    return whole


def cpo(beta=0.1, eps=0.0, margin=0.0):
    def formula(c, r):
        d = beta * (c - r) - margin
        return -((1 - eps) * d.sigmoid().log() + eps * (-d).sigmoid().log()).mean(), beta * c, beta * r

    return formula


def orpo(beta=0.1):
    def formula(c, r):
        odds = [(p.exp() / (1 - p.exp())).log() for p in (c, r)]
        ratio = odds[0] - odds[1]
        return -beta * ratio.sigmoid().log().mean(), beta * c, beta * r, ratio.sigmoid().log().mean(), ratio.mean()

    return formula


LOSSES = {
    "cpo": (chunked_loss.LigerFusedLinearCPOLoss(), pairs(cpo(), nll=True)),
    "cpo, averaged": (
        chunked_loss.LigerFusedLinearCPOLoss(beta=0.3, alpha=0.7, label_smoothing=0.2, average_log_prob=True),
        pairs(cpo(0.3, 0.2), average=True, nll=True, alpha=0.7),
    ),
    "simpo": (chunked_loss.LigerFusedLinearSimPOLoss(beta=2.0, gamma=0.4), pairs(cpo(2.0, margin=0.4), True, nll=True)),
    "simpo, no nll": (chunked_loss.LigerFusedLinearSimPOLoss(compute_nll_loss=False), pairs(cpo(margin=0.5), average=True)),
    "orpo": (chunked_loss.LigerFusedLinearORPOLoss(beta=0.5), pairs(orpo(0.5), average=True, nll=True)),
    "orpo, no nll": (chunked_loss.LigerFusedLinearORPOLoss(compute_nll_loss=False), pairs(orpo(), average=True)),
}


def same(got, want, limit):
    loss, metrics = got
    close(loss, want[0], limit)
    assert len(metrics) == len(want[1])
    for a, b in zip(metrics, want[1], strict=True):
        assert not a.requires_grad
        close(a, b, limit, terms=1)


@pytest.mark.parametrize("rows, group", [(1, 1), (2, 3), (3, 2 * TIME), (1000, 1000)])
@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_pairs(name, bias, dtype, rows, group, small_chunks):
    module, whole = LOSSES[name]
    hidden, weight, b = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, dtype, bias)
    target = targets()
    small_chunks(rows, weight, group)
    got = module(weight, hidden, target, b)
    want = whole(hidden, weight, target, b)
    same(got, want, LIMIT[dtype])
    learning = leaves(hidden, weight, b)
    for a, b in zip(torch.autograd.grad(got[0] * 0.7, learning), torch.autograd.grad(want[0] * 0.7, learning), strict=True):
        close(a, b, LIMIT[dtype])


@pytest.mark.parametrize("group", [8, 64])
@pytest.mark.parametrize("dtype", LIMIT)
def test_a_head_of_whole_vectors(dtype, group, small_chunks):
    """Whose gradient a GPU sums by a product of its own."""
    hidden, weight, _ = head_and_rows((2 * PAIRS, 32), 64, 512, dtype, False)
    target = torch.randint(512, (2 * PAIRS, 32))
    small_chunks(8, weight, group)
    got = chunked_loss.LigerFusedLinearCPOLoss()(weight, hidden, target)
    expected = pairs(cpo(), nll=True)(hidden, weight, target, None)
    same(got, expected, LIMIT[dtype])
    learning = [hidden, weight]
    for a, b in zip(torch.autograd.grad(got[0], learning), torch.autograd.grad(expected[0], learning), strict=True):
        close(a, b, LIMIT[dtype])


DPO = {
    "sigmoid": lambda a, b, beta, eps: -F.logsigmoid(beta * (a - b)),
    "hinge": lambda a, b, beta, eps: F.relu(1 - beta * (a - b)),
    "exo_pair": lambda a, b, beta, eps: _exo(torch.stack([a, b]).mul(beta).log_softmax(0), eps),
    "nca_pair": lambda a, b, beta, eps: -(
        F.logsigmoid(beta * a) + 0.5 * F.logsigmoid(-beta * a) + 0.5 * F.logsigmoid(-beta * b)
    ),
    "robust": lambda a, b, beta, eps: (
        (-(1 - eps) * F.logsigmoid(beta * (a - b)) + eps * F.logsigmoid(beta * (b - a))) / (1 - 2 * eps)
    ),
    "bco_pair": lambda a, b, beta, eps: -F.logsigmoid(beta * a) - F.logsigmoid(-beta * b),
    "sppo_hard": lambda a, b, beta, eps: (a - 0.5 / beta) ** 2 + (b + 0.5 / beta) ** 2,
    "apo_zero": lambda a, b, beta, eps: 1 - torch.sigmoid(beta * a) + torch.sigmoid(beta * b),
    "apo_down": lambda a, b, beta, eps: torch.sigmoid(beta * a) + 1 - torch.sigmoid(beta * (a - b)),
    "discopop": lambda a, b, beta, eps: _discopop(beta * (a - b), 0.05),
}


def _exo(log_q, eps):  # KL of the policy's choice from a smoothed label
    log_p = torch.tensor([1 - eps, eps], dtype=log_q.dtype).log()[:, None]
    return (log_q.exp() * (log_q - log_p)).sum(0)


def _discopop(d, tau):
    share = torch.sigmoid(d / tau)
    return (1 - share) * -F.logsigmoid(d) + share * torch.exp(-d)


@pytest.mark.parametrize("loss_type", DPO)
@pytest.mark.parametrize("dtype", LIMIT)
def test_dpo(loss_type, dtype, small_chunks):
    hidden, weight, bias = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, dtype, True)
    reference = [t.detach() for t in head_and_rows((2 * PAIRS, TIME), 8, VOCAB, dtype, False)[:2]] + [None]
    target, beta, eps = targets(), 0.4, 0.1
    small_chunks(4, weight, 2 * TIME)
    options = dict(loss_type=loss_type, label_smoothing=eps, beta=beta, compute_nll_loss=True, alpha=0.3)
    formula = lambda a, b: (DPO[loss_type](a, b, beta, eps).mean(), beta * a, beta * b)
    whole = pairs(formula, nll=True, alpha=0.3, reference=reference)
    got = chunked_loss.LigerFusedLinearDPOLoss(**options)(weight, hidden, target, bias, *reference)
    want = whole(hidden, weight, target, bias)
    same(got, want, LIMIT[dtype])
    learning = [hidden, weight, bias]
    for a, b in zip(torch.autograd.grad(got[0], learning), torch.autograd.grad(want[0], learning), strict=True):
        close(a, b, LIMIT[dtype])
    by_function = chunked_loss.liger_fused_linear_dpo(hidden, weight, target, bias, *reference, **options)
    assert torch.equal(by_function[0], got[0])


def test_without_a_reference():
    hidden, weight, _ = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, torch.float32, False)
    target = targets()
    got = chunked_loss.LigerFusedLinearDPOLoss(use_ref_model=False)(weight, hidden, target)
    formula = lambda a, b: (-F.logsigmoid(0.1 * (a - b)).mean(), 0.1 * a, 0.1 * b)
    same(got, pairs(formula)(hidden, weight, target, None), LIMIT[torch.float32])


def test_orpo_with_labels_of_its_own_for_nll():
    hidden, weight, bias = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, torch.float32, True)
    target, nll_target = targets(), torch.randint(VOCAB, (2 * PAIRS, TIME))
    nll_target[:, 0] = -100
    got = chunked_loss.liger_fused_linear_orpo(hidden, weight, target, bias, beta=0.5, nll_target=nll_target)
    logits = F.linear(hidden[:PAIRS].double(), weight.double(), bias.double())
    nll = F.cross_entropy(logits.view(-1, VOCAB), nll_target[:PAIRS].reshape(-1))
    want = pairs(orpo(0.5), average=True)(hidden, weight, target, bias)[0] + nll
    close(got[0], want, LIMIT[torch.float32])
    close(got[1][4], nll, LIMIT[torch.float32])
    learning = [hidden, weight, bias]
    for a, b in zip(torch.autograd.grad(got[0], learning), torch.autograd.grad(want, learning), strict=True):
        close(a, b, LIMIT[torch.float32])


def per_answer(module, hidden, weight, target, **reference):
    if isinstance(module, chunked_loss.LigerFusedLinearKTOLoss):
        return module(hidden, weight, target, preference_labels=torch.arange(len(target)) % 2 == 0, **reference)
    return module(weight, hidden, target, **reference)


@pytest.mark.parametrize("kind", [chunked_loss.LigerFusedLinearDPOLoss, chunked_loss.LigerFusedLinearKTOLoss])
@pytest.mark.parametrize("average", [False, True])
def test_log_probabilities_of_a_reference_made_beforehand(kind, average):
    hidden, weight, _ = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, torch.float32, False)
    reference = [t.detach() for t in head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, torch.float32, False)[:2]]
    target, module = targets(), kind(use_ref_model=True, average_log_prob=average)
    known = answers(*reference, None, target, average)[0]
    expected = per_answer(module, hidden, weight, target, ref_input=reference[0], ref_weight=reference[1])
    got = per_answer(module, hidden, weight, target, ref_logps=known)
    same(got, (expected[0], [m.double() for m in expected[1]]), 1e-6)
    for a, b in zip(torch.autograd.grad(got[0], [hidden, weight]), torch.autograd.grad(expected[0], [hidden, weight]), strict=True):
        close(a, b, 1e-6)
    with pytest.raises(ValueError, match="got both"):
        per_answer(module, hidden, weight, target, ref_input=reference[0], ref_weight=reference[1], ref_logps=known)
    with pytest.raises(ValueError, match=r"expected ref_logps \[6\], one an answer; got \[6, 5\]"):
        per_answer(module, hidden, weight, target, ref_logps=torch.zeros(2 * PAIRS, TIME))


@pytest.mark.parametrize("kind, group, expected", [
    (chunked_loss.LigerFusedLinearCPOLoss, 1024, 3),  # all rows of a pair are held until their factors are known
    (chunked_loss.LigerFusedLinearCPOLoss, 16, 3.875),  # a chunk in eight is
    (chunked_loss.LigerFusedLinearDPOLoss, 128, 4),  # and the reference's
    (chunked_loss.LigerFusedLinearKTOLoss, 64, 4),  # an answer
])  # fmt: skip
def test_products(kind, group, expected, small_chunks):
    """Of a head that learns: its logits, the gradients of hidden states and of the weight, of what does not fit the logits
    once more, and the logits of a reference."""
    hidden, weight, _ = head_and_rows((8, 64), 8, 512, torch.float32, False)
    target, module, reference = torch.randint(512, (8, 64)), kind(), {}
    if kind is not chunked_loss.LigerFusedLinearCPOLoss:
        module.use_ref_model, reference = True, dict(ref_input=hidden.detach(), ref_weight=weight.detach())
    small_chunks(16, weight, group)
    with Products(8 * 64, 8, 512) as products:
        per_answer(module, hidden, weight, target, **reference)[0].backward()
    assert products.count == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("kl", [None, 0.4, "one an answer"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("dtype", LIMIT)
def test_kto(dtype, average, kl, small_chunks):
    hidden, weight, bias = head_and_rows((5, TIME), DIM, VOCAB, dtype, True)
    ref = [t.detach() for t in head_and_rows((5, TIME), DIM, VOCAB, dtype, True)]
    target, good = targets()[:5], torch.tensor([True, False, False, True, True])
    kl = torch.rand(5) if isinstance(kl, str) else None if kl is None else torch.tensor(kl)
    small_chunks(3, weight, TIME)
    module = chunked_loss.LigerFusedLinearKTOLoss(beta=0.3, use_ref_model=True, average_log_prob=average)
    loss, sums = module(hidden, weight, target, bias, good, *ref, kl)

    of_answers, _, logits = answers(hidden, weight, bias, target, average)
    ratio = of_answers - answers(*ref, target, average)[0]
    sign = torch.where(good, 1.0, -1.0)
    want = (1 - torch.sigmoid(0.3 * sign * (ratio - (0 if kl is None else kl)))).mean()
    close(loss, want, LIMIT[dtype])
    halves = [x[which].sum() for x in (of_answers, logits, 0.3 * ratio) for which in (good, ~good)]
    for a, b in zip(sums, halves, strict=True):
        close(a, b, LIMIT[dtype], terms=20)
    learning = [hidden, weight, bias]
    for a, b in zip(torch.autograd.grad(loss, learning), torch.autograd.grad(want, learning), strict=True):
        close(a, b, LIMIT[dtype])
    again = chunked_loss.liger_fused_linear_kto(
        hidden, weight, target, good, bias, *ref, kl, beta=0.3, average_log_prob=average
    )
    assert torch.equal(again[0], loss)


def test_what_does_not_learn_has_no_gradient(small_chunks):
    hidden, weight, _ = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, torch.float32, False)
    target, module = targets(), chunked_loss.LigerFusedLinearCPOLoss()
    small_chunks(4, weight)
    both = torch.autograd.grad(module(weight, hidden, target)[0], [hidden, weight])
    frozen = module(weight.detach(), hidden, target)[0]
    close(torch.autograd.grad(frozen, hidden)[0], both[0], 1e-6)  # in other chunks, whose products may round otherwise
    alone = module(weight, hidden.detach(), target)[0]
    assert torch.equal(torch.autograd.grad(alone, weight)[0], both[1])
    with torch.no_grad():
        assert not module(weight, hidden, target)[0].requires_grad
        assert torch.equal(module(weight, hidden, target)[0], frozen)


def test_an_answer_without_tokens(small_chunks):
    hidden, weight, _ = head_and_rows((2, TIME), DIM, VOCAB, torch.float32, False)
    target = torch.full((2, TIME), -100)
    loss, metrics = chunked_loss.LigerFusedLinearSimPOLoss()(weight, hidden, target)
    close(loss, -F.logsigmoid(torch.tensor(-0.5)), 1e-6)
    assert all(not g.any() for g in torch.autograd.grad(loss, [hidden, weight]))


def test_under_autocast_and_beside_a_head_in_float32():
    hidden, weight, bias = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, torch.float32, True)
    target, module = targets(), chunked_loss.LigerFusedLinearCPOLoss()
    short = [t.detach().bfloat16().requires_grad_() for t in (hidden, weight, bias)]
    want = module(short[1], short[0], target, short[2])[0]
    gradients = torch.autograd.grad(want, short)
    with torch.autocast(hidden.device.type, torch.bfloat16):
        got = module(weight, hidden, target, bias)[0]
    beside = module(weight, short[0], target, bias)[0]
    for loss, leaf in ((got, hidden), (beside, short[0])):
        assert torch.equal(loss, want)
        for a, b, to in zip(torch.autograd.grad(loss, [leaf, weight, bias]), gradients, (leaf, weight, bias), strict=True):
            assert a.dtype == to.dtype and torch.equal(a.bfloat16(), b)


def test_compiled():
    hidden, weight, _ = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, torch.float32, False)
    target, module = targets(), chunked_loss.LigerFusedLinearCPOLoss()
    step = lambda h, w: module(w, h * 2, target)[0] * 3
    got, want = torch.compile(step, backend="aot_eager")(hidden, weight), step(hidden, weight)
    assert torch.equal(got, want)
    for a, b in zip(torch.autograd.grad(got, [hidden, weight]), torch.autograd.grad(want, [hidden, weight]), strict=True):
        close(a, b, 1e-6)


def test_gradients_end_where_they_were_made():
    hidden, weight, _ = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, torch.float32, False)
    loss = chunked_loss.LigerFusedLinearCPOLoss()(weight, hidden, targets())[0]
    made = [t.data_ptr() for t in loss.grad_fn.saved_tensors]
    want = [g.clone() for g in torch.autograd.grad(loss, [hidden, weight], torch.tensor(0.7), retain_graph=True)]
    (loss * 0.7).backward()
    assert weight.grad.data_ptr() == made[1]
    assert torch.equal(weight.grad, want[1]) and torch.equal(hidden.grad, want[0])


@pytest.mark.parametrize("learns, group", [(True, 16), (True, 128), (False, 128)])
def test_memory(learns, group, small_chunks):
    hidden, weight, _ = head_and_rows((8, 64), 8, 512, torch.float32, False)
    weight.requires_grad_(learns)
    small_chunks(16, weight, group)
    with Largest() as largest:
        chunked_loss.LigerFusedLinearCPOLoss()(weight, hidden, torch.randint(512, (8, 64)))[0].backward()
    assert largest.numel <= (group if learns else 16) * 512  # logits of a pair, or of a chunk; all would be 512 rows


def test_wrong_arguments():
    hidden, weight, _ = head_and_rows((2 * PAIRS, TIME), DIM, VOCAB, torch.float32, False)
    for options in (dict(loss_type="ipo"), dict(loss_type="exo_pair"), dict(loss_type="robust", label_smoothing=0.5)):
        with pytest.raises(ValueError):
            chunked_loss.LigerFusedLinearDPOLoss(**options)
    with pytest.raises(ValueError, match="ref_input"):
        chunked_loss.LigerFusedLinearDPOLoss()(weight, hidden, targets())
    with pytest.raises(ValueError, match="got 5 in all"):
        chunked_loss.LigerFusedLinearCPOLoss()(weight, hidden[:5], targets()[:5])
    with pytest.raises(ValueError, match=r"expected hidden states \[answers, time, dim\]"):
        chunked_loss.LigerFusedLinearCPOLoss()(weight, hidden[:, 1:], targets())
    with pytest.raises(ValueError, match="preference_labels"):
        chunked_loss.LigerFusedLinearKTOLoss()(hidden, weight, targets())
    with pytest.raises(ValueError, match="one width"):
        chunked_loss.LigerFusedLinearCPOLoss()(weight[:, 1:], hidden, targets())
