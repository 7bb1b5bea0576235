"""The built package through the user's door: kernels/conftest.py loads it."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

LIMIT = {torch.float32: 5e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}  # GEMMs of 16-bit numbers on both sides


def close(got, want, limit):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= limit * want.double().norm()


def target_of(rows, vocab):
    target = torch.randint(vocab, (rows,))
    target[::5] = -100
    return target


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("items", [None, 9, torch.tensor(9)])
def test_layer_is_for_causal_lm_loss(package, ops, dtype, items):
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits = torch.randn(2, 11, 37, dtype=dtype, requires_grad=True)
    labels = target_of(22, 37).view(2, 11)
    before = {op: ops.call_count(op) for op in ("cross_entropy_fwd", "cross_entropy_bwd")}
    got = package.layers.LigerForCausalLMLossLayer()(logits, labels, 37, num_items_in_batch=items)
    gradient = torch.autograd.grad(got, logits)[0]
    assert {op: ops.call_count(op) - n for op, n in before.items()} == dict.fromkeys(before, 1)
    wide = logits.detach().float().requires_grad_()
    want = ForCausalLMLoss(wide, labels, 37, num_items_in_batch=items)
    close(got, want, 2e-6)
    close(gradient, torch.autograd.grad(want, wide)[0], LIMIT[dtype])


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_cross_entropy(package, ops, dtype, reduction, bias):
    inputs = [torch.randn(12, 24, dtype=dtype), torch.randn(40, 24, dtype=dtype) / 5, torch.randn(40, dtype=dtype)]
    inputs = [t.requires_grad_() for t in inputs[: 2 + bias]]
    target = target_of(12, 40)
    before = {op: ops.call_count(f"linear_cross_entropy{op}") for op in ("", "_fwd", "_bwd")}
    got = package.linear_cross_entropy(
        *inputs[:2], target, bias=inputs[2] if bias else None, label_smoothing=0.1, reduction=reduction
    )
    dloss = torch.rand_like(got) + 0.5
    gradients = torch.autograd.grad(got, inputs, dloss)
    calls = {op: ops.call_count(f"linear_cross_entropy{op}") - n for op, n in before.items()}
    assert calls == {"": 0, "_fwd": 1, "_bwd": int(reduction == "none")}
    wide = [t.detach().double().requires_grad_() for t in inputs]
    want = F.cross_entropy(F.linear(*wide), target, label_smoothing=0.1, reduction=reduction)
    close(got, want, LIMIT[dtype])
    for a, b in zip(gradients, torch.autograd.grad(want, wide, dloss.double())):
        close(a, b, LIMIT[dtype])
    with torch.no_grad():
        layer = package.layers.LinearCrossEntropy()(*inputs[:2], target, reduction=reduction)
        close(layer, F.cross_entropy(F.linear(*wide[:2]), target, reduction=reduction), LIMIT[dtype])
    assert ops.call_count("linear_cross_entropy") == before[""] + 1


@pytest.mark.parametrize("dtype", LIMIT)
def test_gradient_in_place_of_the_logits(package, ops, dtype):
    logits, target = torch.randn(12, 40, dtype=dtype), target_of(12, 40)
    wide, before = logits.double().requires_grad_(), ops.call_count("cross_entropy_fwd_")
    got = package.cross_entropy_(logits, target, label_smoothing=0.1)
    assert ops.call_count("cross_entropy_fwd_") == before + 1
    want = F.cross_entropy(wide, target, label_smoothing=0.1)
    close(got, want, 2e-6 if dtype == torch.float32 else LIMIT[dtype])
    close(logits, torch.autograd.grad(want, wide)[0], LIMIT[dtype])


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dloss", [1.0, 0.7])
def test_gradient_made_in_forward(package, ops, dtype, reduction, dloss):
    """Right in a kept graph's first and second backward, and no buffer that is handed out is another's."""
    leaf, target = torch.randn(12, 40, dtype=dtype, requires_grad=True), target_of(12, 40)
    options = dict(label_smoothing=0.1, reduction=reduction, dtype=torch.float32, gradient_in_forward=True)
    before = [ops.call_count(f"cross_entropy_{op}") for op in ("fwd_bwd", "fwd", "bwd")]
    loss = package.cross_entropy(leaf, target, **options)
    incoming = torch.full_like(loss, dloss)
    first, second = (torch.autograd.grad(loss, leaf, incoming, retain_graph=True)[0] for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    first_was = first.clone()
    second.zero_()
    (third,) = torch.autograd.grad(loss, leaf, incoming)
    assert torch.equal(first, first_was) and torch.equal(third, first)
    made = [ops.call_count(f"cross_entropy_{op}") - n for op, n in zip(("fwd_bwd", "fwd", "bwd"), before)]
    assert made == ([0, 1, 3] if reduction == "none" else [1, 0, 0])
    wide = leaf.detach().double().requires_grad_()
    want = F.cross_entropy(wide, target, label_smoothing=0.1, reduction=reduction)
    close(loss, want, 2e-6)
    close(first, torch.autograd.grad(want, wide, incoming.double())[0], LIMIT[dtype])
    with torch.no_grad():
        assert torch.equal(package.cross_entropy(leaf, target, **options), package.cross_entropy(leaf, target, **options | {"gradient_in_forward": False}))
    assert ops.call_count("cross_entropy_fwd_bwd") == before[0] + made[0]


@pytest.mark.parametrize("dloss", [1.0, 0.7])
def test_gradient_made_in_forward_is_handed_on_where_it_lies(package, dloss):
    leaf, target = torch.randn(12, 40, requires_grad=True), target_of(12, 40)
    loss = package.cross_entropy(leaf * 2, target, gradient_in_forward=True)
    (made,) = loss.grad_fn.saved_tensors  # and no logits
    where = made.data_ptr()
    del made
    seen = []
    product = loss.grad_fn.next_functions[0][0]
    product.register_prehook(lambda gradients: seen.append(gradients[0].data_ptr()))
    (loss * dloss).backward()
    assert seen == [where]
    held = package.cross_entropy(leaf * 2, target, gradient_in_forward=True)
    (made,) = held.grad_fn.saved_tensors  # a program that holds it sees it unchanged
    before = made.clone()
    (held * 0.7).backward()
    assert torch.equal(made, before)


def test_gradients_of_a_loss_that_is_not_scaled(package):
    hidden, weight = torch.randn(6, 8, requires_grad=True), torch.randn(9, 8, requires_grad=True)
    target = torch.randint(9, (6,))
    package.linear_cross_entropy(hidden, weight, target).backward()
    got = hidden.grad.clone()
    hidden.grad = None
    F.cross_entropy(F.linear(hidden, weight), target).backward()
    close(got, hidden.grad, 5e-6)


@pytest.mark.parametrize("factor", [1 / 3, 131072.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_times_what_no_short_number_holds(package, dtype, factor):
    values = [1e-3 * torch.randn(*shape, dtype=dtype) for shape in ((6, 8), (9, 8))]
    for frozen in (False, True):
        hidden, weight = (v.clone().requires_grad_() for v in values)
        learns = [hidden] if frozen else [hidden, weight]
        got = package.linear_cross_entropy(hidden, weight.detach() if frozen else weight, target_of(6, 9), reduction="sum")
        ones = torch.autograd.grad(got, learns, torch.tensor(1.0), retain_graph=True)
        for one, times in zip(ones, torch.autograd.grad(got, learns, torch.tensor(factor))):
            assert times.isfinite().all() and torch.equal(times, (one.float() * factor).to(dtype))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_opcheck(ops, reduction):
    options = (-100, 0.0, 0.0, 0.0, reduction)
    logits, target = torch.randn(5, 7, requires_grad=True), target_of(5, 7)
    torch.library.opcheck(ops.cross_entropy_fwd.default, (logits, target, *options))
    if reduction == "mean":  # "none" has no gradient that forward could make
        torch.library.opcheck(ops.cross_entropy_fwd_bwd.default, (logits, target, *options))
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    torch.library.opcheck(ops.linear_cross_entropy_fwd.default, (hidden, weight, None, target, *options))


@pytest.mark.skipif(torch.get_default_device().type != "cpu", reason="on a GPU such a target stops it, as in torch")
def test_errors_name_row_and_value(package):
    with pytest.raises(RuntimeError, match="got 7 in row 1"):
        package.cross_entropy(torch.randn(2, 7), torch.tensor([0, 7]))


@pytest.mark.parametrize("dloss", [1.0, 0.7])
def test_gradients_end_where_they_were_made(package, dloss):
    inputs = [torch.randn(12, 24, requires_grad=True), torch.randn(40, 24, requires_grad=True)]
    loss = package.linear_cross_entropy(*inputs, target_of(12, 40))
    made = [t.data_ptr() for t in loss.grad_fn.saved_tensors][:2]
    want = [g.clone() for g in torch.autograd.grad(loss, inputs, torch.tensor(dloss), retain_graph=True)]
    (loss * dloss).backward()
    for leaf, where, first in zip(inputs, made, want, strict=True):
        assert leaf.grad.data_ptr() == where
        assert torch.equal(leaf.grad, first)


def test_backward_makes_nothing_of_the_weights_size(package):
    inputs = [torch.randn(12, 24, requires_grad=True), torch.randn(40, 24, requires_grad=True)]
    loss = package.linear_cross_entropy(*inputs, target_of(12, 40))
    made = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            out = op(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.shape == (40, 24) and not any(out is a for a in args):
                made.append((op.overloadpacket, out.data_ptr()))
            return out

    with Watch():
        gradients = torch.autograd.grad(loss, inputs)
    assert {where for _, where in made} <= {gradients[1].data_ptr()}, made


def test_small_chunks(package):
    hidden, weight, target = torch.randn(50, 24), torch.randn(40, 24), target_of(50, 40)

    def gradients(chunk_bytes):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        return torch.autograd.grad(package.linear_cross_entropy(*leaves, target, chunk_bytes=chunk_bytes), leaves)

    for got, want in zip(gradients(7 * 40 * 4), gradients(0), strict=True):
        close(got, want, 1e-6)
    with pytest.raises(RuntimeError, match="chunk_bytes >= 0"):
        gradients(-1)
