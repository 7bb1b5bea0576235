"""A bound forward takes every call that the class's own takes: what it has no name for runs stock, and the report says so."""

import copy
import inspect
import warnings

import pytest
import torch
import transformers
from tiny import close, model
from transformers.models.llama import modeling_llama
from torch import nn

import hotswap
import shrunk
import sweep
from hotswap.core import agree
from hotswap.core.fitting import fitted


def test_what_has_the_same_parameters_is_left_alone():
    def stock(self, hidden_states, gate=None): ...
    def ours(self, hidden_states, gate=None, more=1): ...

    assert fitted(stock, ours) == (ours, "")


def test_names_of_the_class_are_taken():
    fit = fitted(lambda self, x: "stock", lambda self, hidden_states: ("ours", hidden_states))
    assert fit.forward(None, 1) == fit.forward(None, x=1) == ("ours", 1) and fit.note == ""


def test_what_ours_has_no_name_for_is_stocks():
    def stock(q, k=None, position_ids=None, unsqueeze_dim=2, **kwargs):
        return "stock"

    def ours(q, k, unsqueeze_dim=1):
        return "ours", q, k, unsqueeze_dim

    fit = fitted(stock, ours)
    assert fit.forward(1, 2) == fit.forward(1, k=2) == fit.forward(q=1, k=2, position_ids=None) == ("ours", 1, 2, 2)
    assert fit.forward(1, 2, None, 3) == ("ours", 1, 2, 3)
    for call in (dict(q=1), dict(q=1, k=None), dict(q=1, k=2, position_ids=3), dict(q=1, k=2, other=3)):
        assert fit.forward(**call) == "stock"
    assert fit.note == "calls with position_ids or without k or with other arguments run stock"


def test_what_needs_more_than_stock_has_is_no_candidate():
    assert fitted(lambda x: x, lambda x, y: x) is None


class ScaledRMSNorm(modeling_llama.LlamaRMSNorm):
    def forward(self, hidden_states, scale=None):
        out = super().forward(hidden_states)
        return out if scale is None else out * scale


class ChosenMLP(modeling_llama.LlamaMLP):
    def forward(self, x, layer_idx=None):
        return super().forward(x if layer_idx is None else x + layer_idx)


class ShiftedNorm(nn.LayerNorm):
    def forward(self, input, shift=None):
        return super().forward(input) if shift is None else super().forward(input) + shift


CONFIG = transformers.LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=2)


@pytest.mark.parametrize("layer", [ScaledRMSNorm(16), ChosenMLP(CONFIG), ShiftedNorm(16)], ids=lambda m: type(m).__name__)
def test_layers_with_an_argument_of_their_own(layer):
    """An error in every forward, were ours bound without it."""
    stock, swapped = nn.Sequential(layer), hotswap.kernelize(nn.Sequential(copy.deepcopy(layer)))
    row = next(row for row in hotswap.report(swapped).rows if row.package)
    _, name, extra = inspect.signature(type(layer).forward).parameters
    assert f"calls with {extra} run stock" in row.why
    x = torch.randn(2, 3, 16)
    for args, kwargs in (((x,), {}), ((), {name: x}), ((x, 0.5), {}), ((x,), {extra: 0.5}), ((x, None), {})):
        close(swapped[0](*args, **kwargs), stock[0](*args, **kwargs))


class Codebooks(nn.Module):
    """A projection that takes a second argument, as Moshi's."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x, layer_idx=None):
        return self.linear(x) if layer_idx is None else self.linear(x) + layer_idx


def test_linked_projections_take_what_theirs_take():
    from hotswap.matchers.projections import linked

    attention = model("llama").model.layers[0].self_attn
    attention.q_proj = Codebooks(attention.q_proj)
    x = torch.randn(2, 3, 32, requires_grad=True)
    assert torch.equal(linked(attention).q_proj(x, 2.0), attention.q_proj(x, 2.0))
    assert torch.equal(linked(attention).q_proj(x, layer_idx=2.0), attention.q_proj(x, 2.0))


@pytest.mark.parametrize("name", ["DINOv3ViTModel", "MoshiForCausalLM", "Qwen4ExpForCausalLM"])
def test_classes_whose_forward_raised(name):
    if not hasattr(transformers, name):
        pytest.skip(f"not in transformers {transformers.__version__}")
    stock, inputs = shrunk.build(getattr(transformers, name))
    swapped = hotswap.kernelize(copy.deepcopy(stock))
    assert any(row.package == "rotary" for row in hotswap.report(swapped).rows)
    got, want = swapped(**inputs)[0], stock(**inputs)[0]
    close(got, want, 1e-5)
    got.pow(2).sum().backward(), want.pow(2).sum().backward()
    for p, q in zip(swapped.parameters(), stock.parameters()):
        assert (p.grad is None) == (q.grad is None)


def test_the_first_kernelize_warns_of_nothing(monkeypatch):
    """A class is asked by calling its forward: by names that are not on their way out."""
    monkeypatch.setattr(agree, "_known", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for family in ("llama", "mistral", "mixtral"):
            hotswap.report(hotswap.kernelize(model(family)))


@pytest.mark.parametrize("name", ["MLCDVisionModel", "Glm5NextTextModel", "LightGlueForKeypointMatching"])
def test_classes_that_the_sweep_found(name):
    """Rotary tables that learn; keywords that go along to a convolution; a mask that is looked into."""
    if not hasattr(transformers, name):
        pytest.skip(f"not in transformers {transformers.__version__}")
    result = sweep.compare(name)
    if "not built" in result:
        pytest.skip(f"transformers {transformers.__version__}: {result['not built']}")
    assert not sweep.is_wrong(result), result
