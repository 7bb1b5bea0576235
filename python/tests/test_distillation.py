"""Distillation over two linear heads in chunks: each loss against its formula on whole float64 logits."""

import pytest
import torch
from chunked import LIMIT, Largest, close, head_and_rows, seeded, small_chunks  # noqa: F401
from torch.nn import functional as F

import hotswap
from hotswap.liger import chunked_loss

ROWS, DIM, TEACHERS, VOCAB = 11, 16, 24, 37


def wide(*tensors):
    return [None if t is None else t.double() for t in tensors]


def jsd(student, teacher, beta):
    """Generalized Jensen-Shannon divergence of rows of float64 probabilities."""
    kl = lambda p, q: (p * (p / q).log()).sum(-1)
    if beta in (0, 1):
        return kl(teacher, student) if beta == 0 else kl(student, teacher)
    m = beta * teacher + (1 - beta) * student
    return beta * kl(teacher, m) + (1 - beta) * kl(student, m)


def target_of(rows):
    target = torch.randint(VOCAB, (rows,))
    target[::4] = -100
    return target


def formula(soft_of, student, teacher, target, temperature, hard=0.5, soft=0.5):
    z, t = F.linear(*wide(*student)), F.linear(*wide(*teacher))
    counts = target != -100
    of_soft = soft_of(z, t[:, : z.shape[1]], temperature)[counts].mean()
    of_hard = F.cross_entropy(z, target)
    return hard * of_hard + soft * of_soft, of_soft, of_hard


SOFT = {
    "jsd": lambda beta: lambda z, t, T: jsd((z / T).softmax(-1), (t / T).softmax(-1), beta),
    "cosine": lambda beta: lambda z, t, T: beta * (1 - (F.normalize(z, dim=-1) * F.normalize(t, dim=-1)).sum(-1)),
}
MODULES = {
    "jsd": (chunked_loss.LigerFusedLinearJSDLoss, chunked_loss.liger_fused_linear_jsd),
    "cosine": (chunked_loss.LigerFusedLinearCosineSimilarityLoss, chunked_loss.liger_fused_linear_cosine),
}


@pytest.mark.parametrize("rows", [3, 1000])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("name", MODULES)
def test_losses(name, dtype, beta, bias, rows, small_chunks):
    student = head_and_rows((ROWS,), DIM, VOCAB, dtype, bias)
    teacher = [t if t is None else t.detach() for t in head_and_rows((ROWS,), TEACHERS, VOCAB, dtype, bias)]
    target = target_of(ROWS)
    small_chunks(rows, student[1])
    options = dict(weight_hard_loss=0.3, weight_soft_loss=0.8, beta=beta, temperature=2.0, return_soft_hard_loss=True)
    module, function = MODULES[name]
    got = module(**options)(*student[:2], *teacher[:2], target, student[2], teacher[2])
    want = formula(SOFT[name](beta), student, teacher, target, 2.0, 0.3, 0.8)
    for a, b in zip(got, want, strict=True):
        close(a, b, LIMIT[dtype])
    learning = [t for t in student if t is not None]
    for a, b in zip(torch.autograd.grad(got[0], learning), torch.autograd.grad(want[0], learning), strict=True):
        close(a, b, LIMIT[dtype])
    options["return_soft_hard_loss"] = False
    alone = function(*student[:2], *teacher[:2], target, student[2], teacher[2], **options)
    assert torch.equal(alone, got[0])


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", LIMIT)
def test_fused_linear_jsd(dtype, beta, labels, small_chunks):
    student = head_and_rows((ROWS,), DIM, VOCAB, dtype, False)[:2]
    teacher = [t.detach() for t in head_and_rows((ROWS,), TEACHERS, VOCAB, dtype, False)[:2]]
    target = target_of(ROWS) if labels else None
    small_chunks(4, student[1])
    got = hotswap.LigerFusedLinearJSD(jsd_beta=beta, temperature=0.7)(*student, *teacher, target)
    rows = jsd(*((F.linear(*wide(*both)) / 0.7).softmax(-1) for both in (student, teacher)), beta)
    want = rows.mean() if target is None else rows[target != -100].mean()
    close(got, want, LIMIT[dtype])
    for a, b in zip(torch.autograd.grad(got, student), torch.autograd.grad(want, student), strict=True):
        close(a, b, LIMIT[dtype])


def test_the_weights_gradient_summed_in_float32(small_chunks):
    hidden, weight, _ = head_and_rows((512,), DIM, VOCAB, torch.bfloat16, False)
    teacher = [t.detach() for t in head_and_rows((512,), DIM, VOCAB, torch.bfloat16, False)[:2]]
    small_chunks(2, weight)
    errors = []
    for dtype in (None, torch.float32):
        loss = hotswap.liger_fused_linear_jsd(hidden, weight, *teacher, accum_dtype=dtype)
        errors.append(torch.autograd.grad(loss, weight)[0])
    rows = jsd(*(F.linear(*wide(*both)).softmax(-1) for both in ((hidden, weight), teacher)), 0.5)
    (want,) = torch.autograd.grad(rows.mean(), weight)
    short, long = ((e.double() - want.double()).norm() for e in errors)
    assert long < short / 2


def test_a_teacher_with_more_words(small_chunks):
    student = head_and_rows((ROWS,), DIM, VOCAB, torch.float32, True)
    teacher = [t.detach() for t in head_and_rows((ROWS,), TEACHERS, VOCAB + 3, torch.float32, True)]
    target = target_of(ROWS)
    module = chunked_loss.LigerFusedLinearJSDLoss()
    got = module(*student[:2], *teacher[:2], target, student[2], teacher[2])
    close(got, formula(SOFT["jsd"](0.5), student, teacher, target, 1.0)[0], 1e-5)
    with pytest.raises(ValueError, match="student's 40 words"):
        module(*teacher[:2], *student[:2], target)


def test_memory(small_chunks):
    student = head_and_rows((256,), 8, 512, torch.float32, False)[:2]
    teacher = [t.detach() for t in head_and_rows((256,), 8, 512, torch.float32, False)[:2]]
    small_chunks(8, student[1])
    with Largest() as largest:
        chunked_loss.LigerFusedLinearJSDLoss()(*student, *teacher, torch.randint(512, (256,))).backward()
    assert largest.numel <= 2 * 8 * 512  # the logits of a chunk of both; all of one would be 32 times as many


def test_no_row_counts():
    student = head_and_rows((ROWS,), DIM, VOCAB, torch.float32, False)[:2]
    loss = hotswap.liger_fused_linear_jsd(*student, *student, torch.full((ROWS,), -100))
    assert loss == 0 and all(not g.any() for g in torch.autograd.grad(loss, student))


def test_wrong_arguments():
    for options in (dict(beta=1.5), dict(temperature=0.0)):
        with pytest.raises(ValueError, match="expected .*; got "):
            chunked_loss.LigerFusedLinearJSDLoss(**options)
