"""Each class of experts behind transformers' interface, in a model of its own: our function in the place of the class's eager
forward. The classes are those of the transformers that is installed: one that is new is tested, or fails, by itself."""

import copy
import re
from pathlib import Path

import pytest
import torch
from mixtures import inputs, places, tiny
from tiny import Calls, close, gradients, same_gradients
from transformers.integrations.moe import ExpertsInterface

import hotswap
from hotswap.matchers import experts

REFUSED = {  # of later releases than 5.17
    "Inkling2Experts": "gate and value go through a soft cap",
    "Inkling2LoopExperts": "the same",
    "MuseSparkExperts": "a norm behind each expert",
}
PLACES = [place for place in places() if place.name not in REFUSED]
EACH = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
hotswap.register_experts()


def made(place):
    cls, config = tiny(place)
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():  # what an expert adds is no rounding beside the rest
        for name, p in model.named_parameters():
            p.normal_(float("norm" in name), p.shape[-1] ** -0.5)
    return model, [m for m in model.modules() if type(m) is place.cls()]


def asked(place):
    """The same, its classes asked: that runs our op, too, which a test that counts calls does not want."""
    model, mixtures = made(place)
    assert mixtures and all(experts.Experts().match(m) for m in mixtures), f"{place.name} has no formula of ours"
    return model, mixtures


def run(model, implementation):
    model.set_experts_implementation(implementation)
    return model(**inputs(model)).last_hidden_state


def eager(module):
    return type(module).forward.__wrapped__.__get__(module)


def test_the_documents_name_them():
    table = (Path(__file__).parents[2] / "docs/python_tested.md").read_text().split("## Classes of experts")[1].split("\n## ")[0]
    named = set(re.findall(r"\w+", table))
    assert {place.family for place in places()} <= named and REFUSED.keys() <= named
    assert len(PLACES) >= 55  # of 5.17; fewer: places() looks in the wrong place


def test_what_has_another_formula_is_refused():
    for place in (p for p in places() if p.name in REFUSED):
        model, mixtures = made(place)
        assert mixtures and not any(experts.Experts().match(m) for m in mixtures)
        with pytest.raises(NotImplementedError, match=f"got {place.name}; set another experts_implementation"):
            run(model, "hotswap")


@EACH
def test_a_model(place):
    """Outputs within what transformers asks of its own grouped_mm; gradients; each call of the experts is one of ours."""
    model, mixtures = asked(place)
    seen, results = [], []
    for m in mixtures:
        m.register_forward_pre_hook(lambda *_: seen.append(1))
    for implementation in ("eager", "hotswap"):
        seen.clear()
        with Calls() as calls:
            hidden = run(model, implementation)
            mine = gradients(model, (hidden * torch.cos(torch.arange(hidden.numel()).view_as(hidden))).mean())
        results.append((hidden.detach(), mine, calls.made))
    (want, of_eager, none), (got, of_ours, calls) = results
    assert none == {} and seen
    assert calls.pop("moe.moe_experts_train") == len(seen) == sum(calls.values())  # and each has its backward
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    close(got, want, 1e-5)
    same_gradients(of_ours, of_eager, 1e-4)


@EACH
def test_in_16_bits(place):
    """On what the model gives its experts, each call beside float64's. A call rounds four times: the first product, the
    activation, the second product, the sum over experts. Each rounding is at most half an eps; they do not know of each other."""
    model, _ = asked(place)
    for dtype in (torch.bfloat16, torch.float16):
        apart = []

        def both(self, x, index, weights):
            wide = eager(copy.deepcopy(self).double())(x.double(), index, weights.double())
            got = experts.experts_forward(self, x, index, weights)
            assert got.dtype == dtype
            apart.append(float((got.double() - wide).norm() / wide.norm()))
            return eager(self)(x, index, weights)

        ExpertsInterface.register("both", both)
        with torch.no_grad(), Calls() as calls:
            run(copy.deepcopy(model).to(dtype), "both")
        assert calls.made == {"moe.moe_experts": len(apart)} and apart
        assert max(apart) <= 4**0.5 * torch.finfo(dtype).eps / 2


@EACH
def test_ids_of_other_ranks(place):
    """Expert parallel: what is not this rank's comes with an id that is none, and adds nothing, whatever its weight."""
    module = asked(place)[1][0]
    tokens, wide = 7, module.down_proj.shape[2 if module.is_transposed else 1]
    count = module.down_proj.shape[0]
    x, index = torch.sin(torch.arange(1.0, 1 + tokens * wide)).view(tokens, wide), torch.arange(2 * tokens).view(tokens, 2) % count
    foreign = torch.zeros(tokens, 2, dtype=torch.bool)
    foreign[2], foreign[4, 1], foreign[5, 0] = True, True, True
    own = torch.full((tokens, 2), 0.7)
    with torch.no_grad():
        want = eager(module)(x, index, own.masked_fill(foreign, 0))
    for other in (count, count + 1, -1):
        weights = own.clone().requires_grad_()
        got = experts.experts_forward(module, x, index.masked_fill(foreign, other), weights)
        close(got.detach(), want, 1e-5)
        (gradient,) = torch.autograd.grad(got.square().sum(), weights)
        assert gradient[foreign].abs().max() == 0 and gradient[~foreign].abs().min() > 0
