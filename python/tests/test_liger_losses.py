"""Liger's names for the losses, in float64's light, with every option; and the options of a bound model's forward."""

import copy
import itertools

import pytest
import torch
from test_vision import data_for
from test_vision import model as vision_model
from tiny import LIMIT, Calls, against, batch, close, gradients, model, same_gradients
from torch.nn import functional as F

import hotswap

DTYPES = list(LIMIT)


def targets(rows, vocab, ignore_index=-100):
    t = torch.randint(vocab, (rows,))
    t[::4] = ignore_index
    return t


def wide_cross_entropy(
    logits, target, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None, weight=None,
    token_scaling=False,
):  # fmt: skip
    """The loss, and the part of it that is z-loss."""
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    valid = target != ignore_index
    weight = torch.ones_like(logits[0]) if weight is None else weight.double()
    given = dict(ignore_index=ignore_index, reduction="none")
    rows = F.cross_entropy(logits, target, weight, label_smoothing=label_smoothing, **given)
    extra = torch.where(valid, lse_square_scale * logits.logsumexp(-1) ** 2, 0.0)
    if token_scaling:
        probability = (-F.cross_entropy(logits, target, **given)).exp().detach()
        rows, extra = rows * probability, extra * probability
    if reduction == "none":
        return rows + extra, extra
    if reduction == "sum":
        return (rows + extra).sum(), extra.sum()
    extra = extra.sum() / valid.sum()
    return rows.sum() / weight[target[valid]].sum() + extra, extra


PLAIN_OPTIONS = [
    {},
    dict(reduction="sum"),
    dict(reduction="none"),
    dict(label_smoothing=0.1),
    dict(lse_square_scale=1e-2),
    dict(softcap=5.0),
    dict(ignore_index=3),
    dict(label_smoothing=0.2, lse_square_scale=1e-3, softcap=8.0, reduction="sum"),
]
WEIGHT = 0.25 + torch.arange(37) % 5 / 2
ALL = dict(label_smoothing=0.2, lse_square_scale=1e-2, softcap=8.0, weight=WEIGHT)
OPTIONS = [*PLAIN_OPTIONS, dict(weight=WEIGHT), ALL, dict(ALL, reduction="sum"), dict(ALL, reduction="none"),
           dict(weight=WEIGHT.bfloat16(), label_smoothing=0.1)]  # fmt: skip


def name(options):
    return " ".join(f"{k}" if k == "weight" else f"{k}={v}" for k, v in options.items()) or "plain"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS, ids=name)
def test_cross_entropy(dtype, options):
    target = targets(13, 37, options.get("ignore_index", -100))
    module = hotswap.LigerCrossEntropyLoss(**options)
    wide = lambda x: wide_cross_entropy(x, target, **options)[0]
    against(lambda x: module(x, target), wide, [2 * torch.randn(13, 37, dtype=dtype)])
    x = torch.randn(13, 37, dtype=dtype)
    assert torch.equal(module(x, target), hotswap.liger_cross_entropy(x, target, **options))
    assert module(x, target).dtype == dtype  # torch's
    assert hotswap.load("loss").cross_entropy(x, target, dtype=torch.float32).dtype == torch.float32


def linear(options):
    """As LigerFusedLinearCrossEntropyLoss and wide_cross_entropy call them."""
    ours = {{"weight": "ce_weight", "token_scaling": "use_token_scaling"}.get(k, k): v for k, v in options.items()}
    return hotswap.LigerFusedLinearCrossEntropyLoss(**ours), lambda logits, target: wide_cross_entropy(logits, target, **options)


SCALED = [dict(token_scaling=True), dict(ALL, token_scaling=True), dict(ALL, token_scaling=True, reduction="none")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", [*OPTIONS, *SCALED], ids=name)
def test_fused_linear_cross_entropy(dtype, bias, options):
    target = targets(13, 37, options.get("ignore_index", -100))
    module, wide = linear(options)
    inputs = [torch.randn(37, 16, dtype=dtype) / 3, torch.randn(13, 16, dtype=dtype)] + [torch.randn(37, dtype=dtype)] * bias
    against(
        lambda w, x, b=None: module(w, x, target, b),
        lambda w, x, b=None: wide(F.linear(x, w, b), target)[0],
        inputs,
    )
    with torch.no_grad():  # by the op that makes no gradients
        close(module(inputs[0], inputs[1], target), wide(F.linear(inputs[1].double(), inputs[0].double()), target)[0], LIMIT[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [o for o in [*OPTIONS, *SCALED] if o.get("reduction") != "none"], ids=name)
def test_a_head_that_does_not_learn(dtype, options, monkeypatch):
    """Adapters: in chunks, and without a gradient of the head."""
    monkeypatch.setattr(hotswap.load("loss").functional, "FROZEN_BYTES", 5 * 37 * dtype.itemsize)
    target, (module, wide) = targets(13, 37, options.get("ignore_index", -100)), linear(options)
    weight, bias = torch.randn(37, 16, dtype=dtype) / 3, torch.randn(37, dtype=dtype)
    with Calls() as calls:
        against(
            lambda x: module(weight, x, target, bias),
            lambda x: wide(F.linear(x, weight.double(), bias.double()), target)[0],
            [torch.randn(13, 16, dtype=dtype)],
        )
    assert calls.made == {"loss.cross_entropy_fwd_": 3}


RETURNS = dict(return_z_loss=True, return_token_accuracy=True, return_predicted_tokens=True)


def check_beside(result, want, logits, target, reduction, ignore_index=-100):
    """want: the loss and its z-loss; logits: where the highest of each row is sure."""
    close(result.loss, want[0], 1e-5)
    close(result.z_loss, want[1], 1e-5)
    counts, words = target != ignore_index, logits.argmax(-1)
    assert torch.equal(result.predicted_tokens, torch.where(counts, words, -1))
    hits = ((words == target) & counts).float()
    assert torch.equal(result.token_accuracy, hits if reduction == "none" else hits.sum() / counts.sum())
    assert not any(t.requires_grad for t in (result.z_loss, result.token_accuracy, result.predicted_tokens))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_what_comes_beside_the_loss_of_logits(reduction):
    x, target = torch.randn(13, 37, requires_grad=True), targets(13, 37)
    target[5] = x[5].argmax()
    options = dict(ALL, reduction=reduction)
    result = hotswap.LigerCrossEntropyLoss(**options, **RETURNS)(x, target)
    assert type(result) is hotswap.CrossEntropyOutput
    check_beside(result, wide_cross_entropy(x.detach().double(), target, **options), x.detach(), target, reduction)
    only = hotswap.liger_cross_entropy(x, target, return_token_accuracy=True)
    assert only.z_loss is None and only.predicted_tokens is None and only.token_accuracy > 0


@pytest.mark.parametrize("learns", ["all", "hidden", "nothing"])
@pytest.mark.parametrize("token_scaling", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_what_comes_beside_the_loss_of_hidden_states(reduction, token_scaling, learns):
    w, x, b = torch.randn(37, 16), torch.randn(13, 16), torch.randn(37)
    for t in {"all": (w, x, b), "hidden": (x,), "nothing": ()}[learns]:
        t.requires_grad_()
    target, options = targets(13, 37), dict(ALL, reduction=reduction, token_scaling=token_scaling)
    logits = F.linear(x, w, b).detach()
    target[5] = logits[5].argmax()
    module = linear(options)[0]
    for flag in RETURNS:
        setattr(module, flag, True)
    result = module(w, x, target, b)
    assert result.loss.requires_grad == (learns != "nothing")
    check_beside(result, wide_cross_entropy(logits.double(), target, **options), logits, target, reduction)


def test_refusals_come_at_construction():
    for bad in (dict(reduction="max"), dict(softcap=0.0), dict(label_smoothing=2.0)):
        for loss in (hotswap.LigerCrossEntropyLoss, hotswap.LigerFusedLinearCrossEntropyLoss):
            with pytest.raises(ValueError, match="expected .*; got "):
                loss(**bad)
    for unknown in (dict(return_token_acuracy=True), dict(use_token_scaling=True)):
        with pytest.raises(TypeError, match=next(iter(unknown))):
            hotswap.LigerCrossEntropyLoss(**unknown)
    with pytest.raises(NotImplementedError, match="accum_dtype"):
        hotswap.LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.bfloat16)
    x, t = torch.randn(3, 5), torch.tensor([0, 1, 2])
    for weight in (torch.ones(4), torch.ones(5, dtype=torch.int64), torch.ones(5, requires_grad=True)):
        with pytest.raises(ValueError, match=r"class_weight \[5\]"):
            hotswap.liger_cross_entropy(x, t, weight)
    with pytest.raises(NotImplementedError, match="size_average"):
        hotswap.liger_cross_entropy(x, t, size_average=True)


# ---- every option with every other --------------------------------------------------------------------------------

EVERY = dict(
    ignore_index=(-100, 3), label_smoothing=(0.0, 0.1), lse_square_scale=(0.0, 1e-2), softcap=(None, 5.0),
    weight=(None, WEIGHT), reduction=("mean", "sum", "none"), token_scaling=(False, True),
)  # fmt: skip
FLAGS = [dict(zip(RETURNS, asked)) for asked in itertools.product((False, True), repeat=3)]
WORDS = torch.arange(11) * 3 % 37  # where the highest logit of each row is to lie


@pytest.fixture
def one_thread():
    """Waking a second thread takes longer than these sizes do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def combinations():
    return [dict(zip(EVERY, values)) for values in itertools.product(*EVERY.values())]


def rows_with_a_sure_word(dtype):
    """Weight, hidden states, bias, targets: some are the highest word, some are word 3, which one ignore_index is."""
    torch.manual_seed(4)
    w = F.normalize(torch.randn(37, 16), dim=1)
    x, b = 3 * w[WORDS] + torch.randn(11, 16) / 8, torch.randn(37) / 8
    target = torch.where(torch.arange(11) % 2 == 0, WORDS, torch.randint(37, (11,)))
    target[1], target[4] = 3, 3
    for bias in (0.0, b):
        best = (x @ w.T + bias).topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 0.1  # no rounding of bfloat16 turns it
    return w.to(dtype), x.to(dtype), b.to(dtype), target


class Beside:
    """What was got and wanted, by shape and limit, compared in one go; a message names the first combinations that are apart."""

    def __init__(self):
        self.rows, self.count = {}, 0

    def add(self, label, got, want, limit):
        assert got.shape == want.shape, label
        self.rows.setdefault((got.shape, limit), []).append((label, got.detach().double(), want.detach()))

    def same(self, label, got, want):
        assert torch.equal(got, want), f"{label}: {got} is not {want}"

    def check(self):
        for (_, limit), rows in self.rows.items():
            got, want = (torch.stack([row[i] for row in rows]).reshape(len(rows), -1) for i in (1, 2))
            apart = ~((got - want).norm(dim=1) <= limit * want.norm(dim=1) + 1e-12)  # NaN is apart
            bad = [rows[i][0] for i in apart.nonzero()[:, 0].tolist()]
            assert not bad, f"{len(bad)} of {len(rows)} apart by more than {limit}: " + "; ".join(map(str, bad[:8]))


def upstream_gradient(loss):
    """Numbers of few bits, not 1, and not alike."""
    if loss.dim() == 0:
        return torch.full_like(loss, 0.75)
    return (torch.arange(len(loss), device=loss.device) % 5 - 1.5).to(loss.dtype)


def wide_with_gradients(inputs, logits_of, target, options):
    double = [t.double().requires_grad_() for t in inputs]
    logits = logits_of(*double)
    loss, extra = wide_cross_entropy(logits, target, **options)
    gradients = torch.autograd.grad(loss, double, upstream_gradient(loss))
    counts, words = target != options["ignore_index"], logits.argmax(-1)
    hits = ((words == target) & counts).float()
    accuracy = hits if options["reduction"] == "none" else hits.sum() / counts.sum()
    predicted = torch.where(counts, words, -1)
    return dict(loss=loss, z_loss=extra, gradients=gradients, predicted_tokens=predicted, token_accuracy=accuracy)


def compare(beside, label, got, want, flags, dtype, learning=()):
    """learning: (place in want's gradients, the tensor)."""
    limit = LIMIT[dtype]
    assert isinstance(got, hotswap.CrossEntropyOutput) == any(flags.values()), label
    loss = got.loss if any(flags.values()) else got
    beside.add(label, loss, want["loss"], limit)
    for flag, asked in flags.items() if any(flags.values()) else ():
        name = flag.removeprefix("return_")
        value = getattr(got, name)
        if not asked:
            assert value is None, (label, name)
        elif name == "z_loss":
            beside.add(label, value, want[name], limit)
        else:
            beside.same((label, name), value, want[name])
    assert loss.requires_grad == bool(learning), label
    if learning:
        gradients = torch.autograd.grad(loss, [t for _, t in learning], upstream_gradient(loss))
        for (place, t), g in zip(learning, gradients):
            assert g.dtype == t.dtype, label
            beside.add((label, f"gradient {place}"), g, want["gradients"][place], 3 * limit)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_option_of_cross_entropy_with_every_other(dtype, one_thread):
    w, x, b, target = rows_with_a_sure_word(dtype)
    logits, beside, loss = F.linear(x, w, b).requires_grad_(), Beside(), hotswap.load("loss")
    for options in combinations():
        want = wide_with_gradients([logits.detach()], lambda t: t, target, options)
        ligers = {k: v for k, v in options.items() if k != "token_scaling"}
        ours = dict(options, class_weight=options["weight"], z_loss=options["lse_square_scale"], softcap=options["softcap"] or 0.0)
        del ours["weight"], ours["lse_square_scale"]
        for flags in FLAGS:
            label = name(options), [k for k, asked in flags.items() if asked]
            if not options["token_scaling"]:  # Liger has no such argument here
                got = hotswap.LigerCrossEntropyLoss(**ligers, **flags)(logits, target)
                compare(beside, label, got, want, flags, dtype, [(0, logits)])
            for early in (False, True):
                got = loss.cross_entropy(logits, target, **ours, **flags, gradient_in_forward=early)
                compare(beside, (*label, early), got, want, flags, dtype, [(0, logits)])
        with torch.no_grad():
            compare(beside, (*label, "no grad"), loss.cross_entropy(logits, target, **ours, **flags), want, flags, dtype)
    beside.check()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_option_of_linear_cross_entropy_with_every_other(dtype, bias, one_thread):
    w, x, b, target = rows_with_a_sure_word(dtype)
    inputs, beside = [x, w] + [b] * bias, Beside()
    ways = [(flags, learns, None) for flags in FLAGS for learns in (len(inputs), 1)]  # all of it, or not the head
    ways += [(FLAGS[0], 0, None), (FLAGS[-1], 0, None), (FLAGS[-1], len(inputs), torch.float32)]
    for options in combinations():
        want = wide_with_gradients(inputs, F.linear, target, options)
        ours = {{"weight": "ce_weight", "token_scaling": "use_token_scaling"}.get(k, k): v for k, v in options.items()}
        for flags, learns, accum_dtype in ways:
            given = [t.detach().requires_grad_(i < learns) for i, t in enumerate(inputs)]
            module = hotswap.LigerFusedLinearCrossEntropyLoss(**ours, **flags, accum_dtype=accum_dtype)
            got = module(given[1], given[0], target, given[2] if bias else None)
            label = name(options), [k for k, asked in flags.items() if asked], learns, accum_dtype
            compare(beside, label, got, want, flags, dtype, list(enumerate(given[:learns])))
    beside.check()


# ---- options of a model's forward ---------------------------------------------------------------------------------

FORWARD = dict(label_smoothing=0.1, lse_square_scale=1e-2, ce_weight=(1 + torch.arange(97) % 3).float())


def wanted(logits, labels, token_scaling=False, items=None):
    target = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    options = dict(label_smoothing=0.1, lse_square_scale=1e-2, weight=FORWARD["ce_weight"], token_scaling=token_scaling)
    reduction = "mean" if items is None else "sum"
    loss, extra = wide_cross_entropy(logits.reshape(-1, 97).double(), target, reduction=reduction, **options)
    return target, (loss, extra) if items is None else (loss / items, extra / items)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
@pytest.mark.parametrize("items", [None, 17])
@pytest.mark.parametrize("training", [True, False])
def test_options_of_a_forward_count(family, items, training):
    stock, data = model(family), batch()
    swapped = hotswap.kernelize(copy.deepcopy(stock), fused_linear_cross_entropy=True)
    stock.train(training), swapped.train(training)
    given = {} if items is None else {"num_items_in_batch": items}
    for scaling in (False, True):
        own = stock(**data, **given)
        target, want = wanted(own.logits, data["labels"], scaling, items)
        balance = 0.0 if getattr(own, "aux_loss", None) is None else stock.router_aux_loss_coef * own.aux_loss
        got = swapped(**data, **given, **FORWARD, **RETURNS, use_token_scaling=scaling, accum_dtype=torch.float32)
        assert (got.logits is None) == training
        close(got.loss, (want[0] + balance).detach(), 1e-5)
        close(got.z_loss, want[1].detach(), 1e-5)
        words = own.logits.reshape(-1, 97).argmax(-1)
        assert torch.equal(got.predicted_tokens, torch.where(target != -100, words, -1))
        assert got.token_accuracy == ((words == target).float().sum() / (target != -100).sum())
        same_gradients(gradients(swapped, got.loss), gradients(stock, want[0] + balance), 2e-5)
    plain = swapped(**data)
    assert not hasattr(plain, "token_accuracy")


@pytest.mark.parametrize("training", [True, False])
def test_options_of_a_forward_that_defers(training):
    stock, data = vision_model("llava"), data_for("llava")
    swapped = hotswap.kernelize(copy.deepcopy(stock), fused_linear_cross_entropy=True)
    stock.train(training), swapped.train(training)
    target, want = wanted(stock(**data).logits, data["labels"])
    got = swapped(**data, **FORWARD, **RETURNS)
    close(got.loss, want[0].detach(), 1e-5)
    close(got.z_loss, want[1].detach(), 1e-5)
    assert got.predicted_tokens.shape == target.shape and (got.logits is None) == training


def test_options_of_a_forward_with_logits():
    stock, data = model(), batch()
    swapped = hotswap.kernelize(copy.deepcopy(stock))
    want = wanted(stock(**data).logits, data["labels"])[1][0]
    close(swapped(**data, **FORWARD, accum_dtype=None).loss, want.detach(), 1e-5)
    with pytest.raises(NotImplementedError, match="return_token_accuracy.*fused_linear_cross_entropy"):
        swapped(**data, return_token_accuracy=True)
    with pytest.raises(NotImplementedError, match="accum_dtype"):
        swapped(**data, accum_dtype=torch.float16)
