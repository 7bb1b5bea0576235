"""peft's Linear layers in training: the same losses and gradients, where one node serves and where it does not."""

import pytest
import torch
from torch import nn

import hotswap

peft = pytest.importorskip("peft")


class Model(nn.Module):
    def __init__(self, bias=False):
        super().__init__()
        self.first, self.second = nn.Linear(24, 40, bias=bias), nn.Linear(40, 24, bias=bias)

    def forward(self, x):
        return self.second(torch.nn.functional.silu(self.first(x))) + x


def made(dtype=torch.float32, bias=False, **config):
    torch.manual_seed(0)
    base = Model(bias).to(dtype)
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": ["first", "second"], "init_lora_weights": False} | config)
    return peft.get_peft_model(base, config).train()


def step(model, x, seed=3):
    torch.manual_seed(seed)
    model.zero_grad()
    x = x.clone().requires_grad_()
    loss = model(x).float().square().mean()
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters() if p.requires_grad)]


def nodes(model, x):
    """How many of the graph's nodes are ours."""
    waiting, seen = [model(x.clone().requires_grad_()).grad_fn], set()
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.add(one)
            waiting += [f for f, _ in one.next_functions]
    return sum("AdaptedProduct" in n.name() for n in seen)


def close(got, expected, limit):
    for g, w in zip(got, expected, strict=True):
        assert g.dtype == w.dtype
        assert (g.double() - w.double()).norm() <= limit * w.double().norm() + 1e-12


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_is_pefts(dtype, dropout, bias):
    model, x = made(dtype, bias, lora_dropout=dropout), torch.randn(5, 7, 24).to(dtype)
    expected = step(model, x)
    hotswap.kernelize(model)
    assert nodes(model, x) == 2
    # bfloat16: peft multiplies in float32 and rounds once, here each of some four products is rounded
    close(step(model, x), expected, 1e-5 if dtype == torch.float32 else 2**-6)
    hotswap.unkernelize(model)
    assert nodes(model, x) == 0
    close(step(model, x), expected, 0)


def test_under_autocast():
    model, x = made(), torch.randn(3, 24)
    with torch.autocast("cpu", torch.bfloat16):
        expected = step(model, x)
        hotswap.kernelize(model)
        assert nodes(model, x) == 2
        close(step(model, x), expected, 2**-6)


def test_the_report_lists_what_runs():
    model = made()
    rows = [row for row in hotswap.report(hotswap.kernelize(model)).rows if row.layer == "LoraLinear"]
    assert len(rows) == 2 and all(row.package == "linear" and row.why == "in training" for row in rows)


@pytest.mark.parametrize(
    "config, why",
    [({"use_dora": True}, "its adapter is a DoraLinearVariant"), ({"lora_bias": True}, "its adapter has more than two plain weights")],
)
def test_what_one_node_leaves_out_stays_pefts(config, why):
    model, x = made(**config), torch.randn(3, 24)
    expected = step(model, x)
    rows = [row for row in hotswap.report(hotswap.kernelize(model)).rows if row.layer == "LoraLinear"]
    assert rows and all(row.package is None and row.why == why for row in rows)
    close(step(model, x), expected, 0)


def test_adapters_that_are_switched_while_bound():
    model, x = made(), torch.randn(3, 24)
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["first"], init_lora_weights=False))
    stock = {name: None for name in ("default", "other")}
    for name in stock:
        model.set_adapter(name)
        stock[name] = step(model, x)
    model.set_adapter("default")
    hotswap.kernelize(model)
    for name, count in {"default": 2, "other": 1}.items():
        model.set_adapter(name)
        assert nodes(model, x) == count
        close(step(model, x), stock[name], 1e-5)
    model.set_adapter("default")
    with torch.no_grad():
        on = model(x)
    with model.disable_adapter():
        assert nodes(model, x) == 0
        off = model(x)
    assert not torch.allclose(on, off)
    model.merge_adapter()
    assert nodes(model, x) == 0
    torch.testing.assert_close(model(x), on, rtol=1e-4, atol=1e-5)
    model.unmerge_adapter()
    close(step(model, x), stock["default"], 1e-4)


def test_a_base_that_learns_and_hooks_stay_pefts():
    model, x = made(), torch.randn(3, 24)
    hotswap.kernelize(model)
    layer = model.base_model.model.first
    layer.base_layer.weight.requires_grad_(True)
    assert nodes(model, x) == 1
    step(model, x)
    assert layer.base_layer.weight.grad is not None
    layer.base_layer.weight.requires_grad_(False)
    heard = []
    layer.lora_A["default"].register_forward_hook(lambda *_: heard.append(1))
    step(model, x)
    assert heard


def test_a_second_derivative_is_refused():
    model, x = made(), torch.randn(3, 24)
    hotswap.kernelize(model)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="a frozen weight with an adapter"):
        grad.sum().backward()


def test_generation_and_evaluation_run_as_peft_has_them():
    model, x = made().eval(), torch.randn(3, 24)
    with torch.no_grad():
        expected = model(x)
        hotswap.kernelize(model)
        assert torch.equal(model(x), expected)
