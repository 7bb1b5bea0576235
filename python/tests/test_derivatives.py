"""A derivative of a derivative through what hotswap's own functions and models run is an error, never a value that lacks
terms. kernels/common/tests/test_ops.py has the ops one by one."""

import pytest
import torch
from chunked import seeded  # noqa: F401
from test_no_labels import CHUNKED, DIM, ROWS, VOCAB, leaf
from tiny import batch, model
from torch import nn

import hotswap
from hotswap import mamba
from hotswap.core.packages import load
from hotswap.matchers import residual

target = torch.randint(0, VOCAB, (ROWS,))
loss, mlp, attention = load("loss"), load("mlp"), load("attention")


def refused(function, *inputs):
    """The gradient of a squared gradient; a part of it that torch can take is no excuse for the part that is not there."""
    for t in inputs:
        with pytest.raises(NotImplementedError, match="derivative of that"):
            value = function(*inputs).square().sum() + sum(t.pow(3).sum() for t in inputs)
            first = torch.autograd.grad(value, inputs, create_graph=True)
            torch.autograd.grad(sum(g.square().sum() for g in first), t)
    with pytest.raises(NotImplementedError, match="derivative of that"):
        torch.autograd.functional.hessian(lambda *t: function(*t).square().sum(), inputs)


FUNCTIONS = {
    "linear_cross_entropy": (lambda x, w: loss.linear_cross_entropy(x, w, target), leaf(ROWS, DIM), leaf(VOCAB, DIM)),
    "frozen head": (lambda x: loss.linear_cross_entropy(x, x.detach()[:VOCAB], target % ROWS), leaf(ROWS, DIM)),
    "frozen head, sum": (
        lambda x: loss.linear_cross_entropy(x, x.detach(), target % ROWS, reduction="sum"), leaf(ROWS, DIM)),
    "cross_entropy": (lambda x: loss.cross_entropy(x, target), leaf(ROWS, VOCAB)),
    "cross_entropy, in forward": (lambda x: loss.cross_entropy(x, target, gradient_in_forward=True), leaf(ROWS, VOCAB)),
    "whole gated MLP": (
        lambda x, g, u, d: mlp.whole.GatedMlp.apply("swiglu", x, g, u, d),
        leaf(3, 8), leaf(12, 8), leaf(12, 8), leaf(8, 12)),
    "linked projections": (lambda x, w: torch.cat(mlp.linked.Linked.apply(x, w, None), -1), leaf(3, 8), leaf(5, 8)),
    "norm and input": (
        lambda x, w: torch.cat(residual.NormAndInput.apply(x, w, 1e-6, 0.0, "llama"), -1), leaf(3, 8), leaf(8)),
    "attention": (lambda q: attention.flash_attn_func(q, q, q, causal=True), leaf(1, 3, 2, 8)),
    "attention, deterministic": (lambda q: attention.flash_attn_func(q, q, q, deterministic=True), leaf(1, 3, 2, 8)),
    "attention's lse": (lambda q: attention.flash_attn_func(q, q, q, return_attn_probs=True)[1], leaf(1, 3, 2, 8)),
    "softmax": (hotswap.liger_softmax, leaf(3, 8)),
    "dyt": (lambda x, a, w: hotswap.liger_dyt(x, a, w, None), leaf(3, 8), leaf(1), leaf(8)),
    "scan": (
        lambda u, delta: mamba.selective_scan_fn(u, delta, -torch.ones(4, 3), torch.ones(1, 3, 5), torch.ones(1, 3, 5)),
        leaf(1, 4, 5), leaf(1, 4, 5)),
    "mamba": (
        lambda xz, w: mamba.mamba_inner_fn(
            xz, w, None, torch.ones(7, 4), torch.ones(4, 1), torch.ones(6, 4), None, -torch.ones(4, 3)),
        leaf(1, 8, 5), leaf(4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    refused(*FUNCTIONS[name])


@pytest.mark.parametrize("name", [n for n in CHUNKED if n != "policy, vespo"])
def test_losses_over_a_head(name):
    hidden, weight = leaf(ROWS, DIM), leaf(VOCAB, DIM)
    loss_of = CHUNKED[name]
    for t in (hidden, weight):
        with pytest.raises(NotImplementedError, match="derivative of that"):
            value = loss_of(hidden, weight) + hidden.pow(3).sum()
            first = torch.autograd.grad(value, [hidden, weight], create_graph=True)
            torch.autograd.grad(sum(g.square().sum() for g in first), t)
    with pytest.raises(NotImplementedError, match="derivative|forward mode"), torch.autograd.forward_ad.dual_level():
        loss_of(torch.autograd.forward_ad.make_dual(hidden, torch.ones_like(hidden)), weight)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe", "falcon_h1"])
@pytest.mark.parametrize("options", [{}, dict(fused_linear_cross_entropy=True, attention=True)])
def test_models(family, options):
    """Adversarial training, influence functions: the gradient of a squared gradient of the embeddings."""
    ours = hotswap.kernelize(model(family).train(), **options)
    ids = batch()["input_ids"]
    embeds = ours.get_input_embeddings()(ids).detach().requires_grad_()
    with pytest.raises(NotImplementedError, match="derivative of that"):
        value = ours(inputs_embeds=embeds, labels=ids).loss
        (first,) = torch.autograd.grad(value, embeds, create_graph=True)
        torch.autograd.grad(first.square().sum(), embeds)


def test_the_first_derivative_may_be_taken_with_a_graph():
    """create_graph alone, as some optimizers' closures have it, costs nothing: the gradient is the same."""
    x, norm = leaf(3, 8), hotswap.load("norm")
    run = lambda **options: torch.autograd.grad(norm.rms_norm(x, torch.ones(8), 1e-6, 0.0, "llama").sum(), x, **options)[0]
    assert torch.equal(run(create_graph=True), run())


def test_a_module_whose_output_is_not_differentiated_twice_is_free():
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    x = leaf(3, 8)
    hidden = net(x)
    (first,) = torch.autograd.grad(hidden.sum(), x, create_graph=True)
    other = hotswap.liger_softmax(leaf(3, 8)).sum()
    torch.autograd.grad(first.square().sum() + other, x)  # torch's own part of the graph alone
