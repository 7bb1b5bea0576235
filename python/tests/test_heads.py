"""Which forward gives the loss without logits: decided by what the class's own forward does between its head and its loss."""

import functools

import pytest
import torch
import transformers
from test_families import FAMILIES, model
from tiny import BASE, batch, close
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaForCausalLM

import hotswap
from hotswap.matchers import loss
from hotswap.matchers.heads import first_that_agrees


def cohere(**options):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(transformers.CohereConfig(**BASE, **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_one(family):
    assert loss._fusing(model(family)) is not None


def test_a_scale_that_ours_has_not():
    """Cohere multiplies its logits by logit_scale, which no forward of ours reads."""
    assert loss._fusing(cohere(logit_scale=0.25)) is None
    assert loss._fusing(cohere(logit_scale=1.0)) is not None
    swapped = hotswap.kernelize(cohere(logit_scale=0.25), fused_linear_cross_entropy=True)
    swapped.train()
    got, expected = swapped(**batch()), cohere(logit_scale=0.25).train()(**batch())
    close(got.loss, expected.loss)
    assert got.logits is not None


def changed(change):
    """A Llama whose class has the forward `change(stock, self, *args, **kwargs)`."""
    stock = LlamaForCausalLM.forward

    @functools.wraps(stock)
    def forward(self, *args, **kwargs):
        return change(stock, self, *args, **kwargs)

    made = model("llama")
    made.__class__ = type("Changed", (LlamaForCausalLM,), {"forward": forward})
    return made


def twice_the_loss(stock, self, *args, **kwargs):
    outputs = stock(self, *args, **kwargs)
    if outputs.loss is not None:
        outputs.loss = outputs.loss * 2
    return outputs


def other_arguments(stock, self, *args, position_ids=None, **kwargs):
    return stock(self, *args, position_ids=torch.arange(5)[None] + 1, **kwargs)


def another_field(stock, self, *args, **kwargs):
    outputs = stock(self, *args, **kwargs)
    outputs["extra"] = torch.ones(1)
    return outputs


@pytest.mark.parametrize("change", [twice_the_loss, other_arguments, another_field])
def test_what_is_not_the_same_stays_stock(change):
    """By the forward that makes its own call of the model inside. The one that runs the class's own has all of these but the first."""
    made = changed(change)
    fused = loss.fused_forward(type(made))
    assert first_that_agrees(made, type(made).forward, [fused]) is None
    assert first_that_agrees(model("llama"), LlamaForCausalLM.forward, [loss.fused_forward(LlamaForCausalLM)]) is not None


def test_nothing_is_drawn():
    made = model("mixtral")
    state = torch.get_rng_state()
    loss._fusing(made)
    assert torch.equal(torch.get_rng_state(), state)
