"""A GPU's way through decoder layers in training, forced onto the CPU: norms that take the residual with them."""

import functools

import pytest
import torch
from tiny import Calls, batch, gradients, model, same_gradients, same_step, twin
from torch import nn
from transformers.models.llama import modeling_llama

import hotswap
from hotswap.core import agree
from hotswap.matchers import residual
from hotswap.matchers.registered import matches

LAYERS = 2


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(hotswap.load("mlp").linked, "DEVICES", {"cpu", "cuda"})


def rows(m):
    return [r.name for r in hotswap.report(m).rows if r.layer == "AddRMSNorm" and r.package == "norm"]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma", "mixtral", "smollm3"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_step_is_stocks(family, checkpointed):
    stock = model(family).train()
    ours = twin(stock)
    if checkpointed:
        for m in (stock, ours):
            m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with Calls() as calls:
        same_step(ours, stock, batch(), 1e-5, 2e-5)
    assert rows(ours) == [f"model.layers.{i}" for i in range(LAYERS)]
    assert calls.own["norm.add_rms_norm_fwd"] == LAYERS * (1 + checkpointed)
    assert calls.own["norm.add_rms_norm_bwd"] == 2 * LAYERS


@pytest.mark.parametrize("family", ["gemma2", "olmo2", "granite", "gpt_oss"])
def test_layers_of_another_kind_stay_as_they_are(family):
    """Norms behind attention, factors on what is added, an MLP that gives two."""
    stock = model(family, **(dict(residual_multiplier=0.5) if family == "granite" else {})).train()
    ours = twin(stock)
    with Calls() as calls:
        same_step(ours, stock, batch(), 1e-5)
    assert rows(ours) == [] and "norm.add_rms_norm_fwd" not in calls.own


def test_a_class_that_computes_something_else_is_not_bound():
    layer = model().model.layers[0]
    stock = type(layer).forward
    for name, changed in {
        "adds twice": lambda self, hidden_states, *a, **k: stock(self, hidden_states, *a, **k) + hidden_states,
        "hides the mask": lambda self, hidden_states, attention_mask=None, **k: stock(self, hidden_states, **k),
        "gives a tuple": lambda self, hidden_states, *a, **k: (stock(self, hidden_states, *a, **k),),
        "forgets the rest": lambda self, hidden_states, attention_mask=None, **k: stock(self, hidden_states, attention_mask),
    }.items():
        layer.__class__ = type("Changed", (type(layer),), {"forward": changed})
        assert matches(layer) == [], name


def test_evaluation_autocast_hooks_and_switches():
    stock = model()
    ours = twin(stock)
    with Calls() as calls, torch.no_grad():
        ours.eval()(**batch())
    assert "norm.add_rms_norm_fwd" not in calls.own
    with Calls() as calls, torch.autocast(torch.get_default_device().type, torch.bfloat16):
        ours.train()(**batch()).loss.backward()
    assert "norm.add_rms_norm_fwd" not in calls.own and "norm.add_rms_norm_bwd" not in calls.own
    assert rows(twin(stock, rms_norm=False)) == []
    for m in (stock, ours):
        m.train().model.layers[0].post_attention_layernorm.register_forward_hook(lambda module, args, y: 2 * y)
    with Calls() as calls:
        same_step(ours, stock, batch(), 1e-5, 2e-5)
    assert calls.own["norm.add_rms_norm_fwd"] == LAYERS - 1
    before = type(stock.model.layers[0]).forward
    assert "forward" not in vars(hotswap.unkernelize(ours).model.layers[0]) and type(ours.model.layers[0]).forward is before


def test_frozen_norms_recorded_states_and_kept_graphs():
    stock = model().train()
    for name, p in stock.named_parameters():
        p.requires_grad_("layernorm" not in name)
    ours = twin(stock)
    got, want = (m(**batch(), output_hidden_states=True) for m in (ours, stock))
    assert len(got.hidden_states) == len(want.hidden_states) == LAYERS + 1
    for g, w in zip(got.hidden_states, want.hidden_states):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)
    got.loss.backward(retain_graph=True)
    first = {n: p.grad for n, p in ours.named_parameters() if p.grad is not None}
    same_gradients(gradients(ours, got.loss), first, 1e-6)
    same_gradients(first, gradients(stock, want.loss))


def test_norm_and_input_alone():
    norm = hotswap.load("norm")
    for uses in ((True, False), (False, True), (True, True)):
        x, weight = torch.randn(3, 16, requires_grad=True), torch.rand(16, requires_grad=True)
        y, same = residual.NormAndInput.apply(x, weight, 1e-6, 0.0, "llama")
        got = sum(t.square().sum() for t, use in zip((y, same), uses) if use)
        want = sum(t.square().sum() for t, use in zip((nn.functional.rms_norm(x, (16,), weight, 1e-6), x), uses) if use)
        leaves = [x, weight] if uses[0] else [x]
        for g, w in zip(torch.autograd.grad(got, leaves), torch.autograd.grad(want, leaves)):
            torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-6)
    assert norm.rms_norm(x, weight, 1e-6, 0.0, "llama").shape == x.shape


def renaming(forward):
    """As transformers' deprecate_kwarg from 5.24 on."""

    @functools.wraps(forward)
    def renamed(*args, **kwargs):
        if "mask" in kwargs:
            kwargs["attention_mask"] = kwargs.pop("mask")
        return forward(*args, **kwargs)

    return renamed


def test_forwards_that_rename_an_argument(monkeypatch):
    """Rotary embedding, linked projections, norms with the residual and the attention are found inside of a decorator."""
    monkeypatch.setattr(agree, "_known", {})
    for kind in (modeling_llama.LlamaAttention, modeling_llama.LlamaDecoderLayer):
        monkeypatch.setattr(kind, "forward", renaming(kind.forward))
    stock = model("llama").train()
    ours = hotswap.kernelize(twin(stock), attention=True, fused_linear_cross_entropy=True)
    with Calls() as calls:
        same_step(ours, stock, batch(), 1e-5, 2e-5)
    layers = {r.layer for r in hotswap.report(ours).rows if r.package}
    assert rows(ours) and {"rotary_pos_emb", "attention"} <= layers
    assert calls.own["rotary.rotary_bwd"] == calls.own["norm.add_rms_norm_fwd"] == LAYERS
    layer, x = ours.model.layers[0], torch.randn(1, 3, ours.config.hidden_size, requires_grad=True)
    where, mask = ours.model.rotary_emb(x, torch.arange(3)[None]), torch.zeros(1, 1, 3, 3).fill_(-1e9).triu(1)
    by_old_name, by_new = (layer(x, position_embeddings=where, **{name: mask}) for name in ("mask", "attention_mask"))
    assert torch.equal(by_old_name, by_new) and not torch.equal(by_new, layer(x, position_embeddings=where, mask=mask * 0))
