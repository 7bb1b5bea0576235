"""GRPO and its kin over a linear head in chunks, and on logits: each against its formula, token by token in float64."""

import math

import pytest
import torch
from chunked import LIMIT, Largest, Products, close, head_and_rows, seeded, small_chunks  # noqa: F401
from torch.nn import functional as F

from hotswap.liger import chunked_loss
from hotswap.liger.grpo import LOSS_TYPES, fused_selective_log_softmax, triton_grpo_loss

BATCH, TIME, DIM, VOCAB = 4, 6, 16, 37
DEFAULTS = dict(
    beta=0.1, epsilon_low=0.2, epsilon_high=0.3, importance_sampling_level="token", temperature=0.9, delta=None,
    use_bias_correction_kl=False, max_completion_length=11,
)  # fmt: skip


def logps_of(hidden, weight, bias, ids, temperature):
    logits = F.linear(hidden.double(), weight.double(), None if bias is None else bias.double()) / temperature
    return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]


def phi(ratios, mask, is_ratio, advantage):
    """VESPO's weight of one sequence."""
    log_w = (ratios.log().clamp(-20, 20) * mask).sum()
    if is_ratio is not None:
        log_w = log_w + is_ratio.log().clamp(math.log(1e-8), 20).sum()
    log_w = log_w.clamp(math.log(1e-8), 20).item()
    k, rate = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
    return math.exp(rate + k * log_w - rate * math.exp(log_w))


def formula(logps, mask, advantages, old, ref, is_ratio, o, items=None):
    """(loss, kl, clipped) sequence by sequence."""
    kind, losses, kls, clips = o["loss_type"], [], [], []
    for i, a in enumerate(advantages.double()):
        now, m = logps[i], mask[i].double()
        before = now.detach() if old is None else old[i].double()
        r = (now - before).exp()
        if o["importance_sampling_level"] == "sequence":
            r = (((now - before) * m).sum() / m.sum()).exp().expand(TIME)
        its = None if is_ratio is None else is_ratio[i].double()
        low, high = 1 - o["epsilon_low"], 1 + o["epsilon_high"]
        clip = ((r < low) & (a < 0)) | ((r > high) & (a > 0))
        if kind == "cispo":
            loss = -r.clamp(max=o["epsilon_high"]).detach() * a * now
            clip = (r > o["epsilon_high"]) & (a > 0)
        elif kind == "sapo":
            t = 1.0 if a > 0 else 1.05
            loss, clip = -a * 4 / t * torch.sigmoid(t * (r - 1)), r < 0
        elif kind == "vespo":
            loss, clip = -phi(r.detach(), m, its, a) * a * now, r < 0
        else:
            bounded = r if o["delta"] is None else torch.where(r > o["delta"], torch.tensor(o["delta"]).double(), r)
            loss = -torch.minimum(bounded * a, r.clamp(low, high) * a)
        if its is not None and kind != "vespo":
            loss = loss * its
        d = ref[i].double() - now
        kl = d.exp() - d - 1
        if o["use_bias_correction_kl"]:
            kl = kl * r
        if o["beta"]:
            loss = loss + o["beta"] * kl
        losses, kls, clips = losses + [loss], kls + [kl], clips + [clip.double()]
    losses, kls, clips, m = torch.stack(losses), torch.stack(kls), torch.stack(clips), mask.double()
    by_token, lengths = losses * m, m.sum(1).clamp(min=1)
    loss = {
        "grpo": lambda: (by_token.sum(1) / lengths).mean(),
        "sapo": lambda: (by_token.sum(1) / lengths).mean(),
        "bnpo": lambda: by_token.sum() / m.sum(),
        "dr_grpo": lambda: by_token.sum() / (BATCH * o["max_completion_length"]),
        "luspo": lambda: (losses * lengths[:, None]).mean(),
    }.get(kind, lambda: by_token.sum() / (items or m.sum()))()
    of = lambda x: (x * m).sum() / m.sum()
    return loss, *([of(kls)] if o["beta"] else []), of(clips)


def batch(dtype, bias=True):
    hidden, weight, b = head_and_rows((BATCH, TIME), DIM, VOCAB, dtype, bias)
    ids, mask = torch.randint(VOCAB, (BATCH, TIME)), torch.ones(BATCH, TIME, dtype=torch.long)
    mask[0, 4:] = mask[2, 1:] = 0
    now = logps_of(hidden, weight, b, ids, 0.9).detach()
    old, ref = (now + s * torch.randn(BATCH, TIME, dtype=torch.float64) for s in (0.3, 0.5))
    return hidden, weight, b, ids, mask, torch.tensor([1.0, -0.7, 0.4, -1.2]), old.float(), ref.float()


# where a ratio is near a bound, rounding may move it over: these bounds are clear of the numbers
CASES = [dict(loss_type=kind) for kind in LOSS_TYPES] + [
    dict(loss_type="grpo", importance_sampling_level="sequence", beta=0.0),
    dict(loss_type="luspo", importance_sampling_level="sequence", use_bias_correction_kl=True),
    dict(loss_type="dapo", delta=1.1, use_bias_correction_kl=True),
    dict(loss_type="cispo", epsilon_high=1.2, beta=0.0),
]


@pytest.mark.parametrize("ratio", [None, "token", "sequence"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: ", ".join(map(str, c.values())))
def test_by_formula(case, ratio, small_chunks):
    hidden, weight, bias, ids, mask, advantages, old, ref = batch(torch.float32)
    small_chunks(5, weight, TIME)
    o = DEFAULTS | case
    ratio = None if ratio is None else torch.rand(BATCH, TIME if ratio == "token" else 1) + 0.5
    loss, metrics = chunked_loss.LigerFusedLinearGRPOLoss(**o)(
        hidden, weight, ids, mask, advantages, bias, ref, old, vllm_is_ratio=ratio
    )
    logps = logps_of(hidden, weight, bias, ids, o["temperature"])
    want, *measured = formula(logps, mask, advantages, old, ref, ratio, o)
    close(loss, want, 1e-5, terms=1)
    for a, b in zip(metrics, measured, strict=True):
        close(a, b, 1e-5)
    learning = [hidden, weight, bias]
    got_gradients = torch.autograd.grad(loss, learning, retain_graph=True)
    for a, b in zip(got_gradients, torch.autograd.grad(want, learning, retain_graph=True), strict=True):
        close(a, b, 2e-5)

    # the same on logits, as Liger's triton_grpo_loss takes them: one position more
    logits = F.pad(F.linear(hidden, weight, bias), (0, 0, 0, 1)).detach().requires_grad_()
    names = dict(epsilon_low="eps_low", epsilon_high="eps_high")
    options = {names.get(k, k): v for k, v in o.items()}
    of_logits, its = triton_grpo_loss(
        logits, old, ref, ids, advantages, mask, vllm_is_ratio=ratio, reduce=True, **options
    )
    close(of_logits, want, 1e-5, terms=1)
    for a, b in zip(its, measured, strict=True):
        close(a, b, 1e-5)
    (dlogits,) = torch.autograd.grad(of_logits, logits)
    close(dlogits[:, :-1].reshape(-1, VOCAB).T @ hidden.detach().reshape(-1, DIM), got_gradients[1], 2e-5)
    by_token = triton_grpo_loss(logits, old, ref, ids, advantages, mask, vllm_is_ratio=ratio, **options)
    assert all(t is None or t.shape == (BATCH, TIME) for t in by_token)
    if o["loss_type"] in ("bnpo", "dapo", "cispo", "vespo"):
        close((by_token[0] * mask).sum() / mask.sum(), want, 1e-5, terms=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype):
    hidden, weight, bias, ids, mask, advantages, _, _ = batch(dtype)
    o = DEFAULTS | dict(loss_type="dapo")
    ref = logps_of(hidden, weight, bias, ids, 0.9).detach().float() + 0.5
    loss, _ = chunked_loss.LigerFusedLinearGRPOLoss(**o)(hidden, weight, ids, mask, advantages, bias, ref)
    want = formula(logps_of(hidden, weight, bias, ids, 0.9), mask, advantages, None, ref, None, o)[0]
    close(loss, want, 4 * LIMIT[dtype])  # a difference of log-probabilities is exponentiated
    learning = [hidden, weight, bias]
    for a, b in zip(torch.autograd.grad(loss, learning), torch.autograd.grad(want, learning), strict=True):
        close(a, b, 2 * LIMIT[dtype])


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_log_probabilities_on_logits(dtype, small_chunks):
    """Without a copy of all logits; ids and mask may be longer than the answers, and strided."""
    small_chunks(2, torch.empty(VOCAB, 1))
    logits = torch.randn(BATCH, TIME + 1, VOCAB).to(dtype)
    ids, mask = torch.randint(VOCAB, (BATCH, 2 * (TIME + 3))), torch.randint(2, (BATCH, TIME + 2))
    ids = ids[:, ::2]
    with Largest() as largest:
        got = fused_selective_log_softmax(logits, ids, 0.7, mask)
    want = (logits[:, :-1].double() / 0.7).log_softmax(-1).gather(-1, ids[:, -TIME:, None])[..., 0] * mask[:, -TIME:]
    assert got.dtype == torch.float32 and largest.numel < logits.numel() / 2  # of one sequence, as a view
    close(got, want, 1e-6)
    assert not fused_selective_log_softmax(logits.requires_grad_(), ids).requires_grad


def test_a_reference_by_its_head_and_items_of_all_batches():
    hidden, weight, bias, ids, mask, advantages, old, _ = batch(torch.float32)
    ref = [t.detach() for t in head_and_rows((BATCH, TIME), 8, VOCAB, torch.float32, True)]
    o = DEFAULTS | dict(loss_type="dapo")
    got = chunked_loss.LigerFusedLinearGRPOLoss(**o)(
        hidden, weight, ids, mask, advantages, bias, None, old, *ref, num_items_in_batch=40
    )
    its = logps_of(*ref, ids, 0.9)
    want = formula(logps_of(hidden, weight, bias, ids, 0.9), mask, advantages, old, its, None, o, items=40)
    close(got[0], want[0], 1e-5)
    by_function = chunked_loss.liger_fused_linear_grpo(
        hidden, weight, ids, mask, advantages, bias, None, old, *ref, num_items_in_batch=40, **o
    )
    assert torch.equal(by_function[0], got[0])


def test_what_stands_where_the_mask_is_0_counts_nowhere():
    hidden, weight, bias, ids, mask, advantages, old, ref = batch(torch.float32)
    module = chunked_loss.LigerFusedLinearGRPOLoss(loss_type="grpo")
    got = module(hidden, weight, ids, mask, advantages, bias, ref, old)[0]
    hole = mask == 0
    ids, old, ref = ids.masked_fill(hole, 10**6), old.masked_fill(hole, -1e4), ref.masked_fill(hole, float("-inf"))
    assert torch.equal(module(hidden, weight, ids, mask, advantages, bias, ref, old)[0], got)


def test_memory(small_chunks):
    hidden, weight, _ = head_and_rows((4, 128), 8, 512, torch.float32, False)
    small_chunks(16, weight)
    module = chunked_loss.LigerFusedLinearGRPOLoss(beta=0.0)
    with Largest() as largest:
        ids, mask = torch.randint(512, (4, 128)), torch.ones(4, 128)
        module(hidden, weight, ids, mask, torch.randn(4))[0].backward()
    assert largest.numel <= 16 * 512  # a chunk's logits; all would be 32 times as many


@pytest.mark.parametrize("level, group, expected", [("token", 16, 3), ("sequence", 128, 3), ("sequence", 16, 3.875)])
def test_products(level, group, expected, small_chunks):
    """A token's factor depends on its own row, an answer's on all of its rows: logits are held until it is known."""
    hidden, weight, _ = head_and_rows((4, 128), 8, 512, torch.float32, False)
    small_chunks(16, weight, group)
    module = chunked_loss.LigerFusedLinearGRPOLoss(beta=0.0, importance_sampling_level=level)
    ids, mask = torch.randint(512, (4, 128)), torch.ones(4, 128)
    with Products(4 * 128, 8, 512) as products:
        module(hidden, weight, ids, mask, torch.randn(4))[0].backward()
    assert products.count == pytest.approx(expected, abs=0.01)


def test_wrong_arguments():
    for options in (
        dict(loss_type="ppo"),
        dict(loss_type="cispo", importance_sampling_level="sequence"),
        dict(importance_sampling_level="word"),
        dict(loss_type="dr_grpo"),
        dict(delta=0.0),
        dict(loss_type="sapo", sapo_temperature_neg=-1.0),
    ):
        with pytest.raises(ValueError):
            chunked_loss.LigerFusedLinearGRPOLoss(**options)
    hidden, weight, _, ids, mask, advantages, _, _ = batch(torch.float32, bias=False)
    module = chunked_loss.LigerFusedLinearGRPOLoss()
    with pytest.raises(ValueError, match="got neither"):
        module(hidden, weight, ids, mask, advantages)
    with pytest.raises(ValueError, match="vllm_is_ratio"):
        module(hidden, weight, ids, mask, advantages, ref_per_token_logps=mask.float(), vllm_is_ratio=torch.ones(3))
    with pytest.raises(ValueError, match="reshape"):
        module(hidden, weight, ids[:, 1:], mask, advantages)


def test_the_reference_that_is_taken_of_two_is_told():
    hidden, weight, bias, ids, mask, advantages, _, ref = batch(torch.float32)
    module = chunked_loss.LigerFusedLinearGRPOLoss(beta=0.04)
    want = module(hidden, weight, ids, mask, advantages, bias, ref)[0]
    with pytest.warns(UserWarning, match="Using ref_per_token_logps"):
        got = module(hidden, weight, ids, mask, advantages, bias, ref, ref_input=hidden, ref_weight=weight)[0]
    assert torch.equal(got, want)
