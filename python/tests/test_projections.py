"""A GPU's way through projections of one input, forced onto the CPU: q, k and v linked, a gated MLP in one node."""

import copy

import pytest
import torch
from tiny import Calls, batch, close, gradients, model, same_gradients, same_step, twin
from torch import nn

import hotswap
from hotswap.matchers import projections

LAYERS = 2


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(hotswap.load("mlp").linked, "DEVICES", {"cpu", "cuda"})


class Nodes:
    """with Nodes() as n: ...; n.made: how often each of the two functions ran."""

    def __enter__(self):
        self.made, self.undo = {}, []
        for function in (hotswap.load("mlp").linked.Linked, hotswap.load("mlp").whole.GatedMlp):
            before = function.apply

            def counting(*args, before=before, name=function.__name__):
                self.made[name] = self.made.get(name, 0) + 1
                return before(*args)

            function.apply = counting
            self.undo.append(function)
        return self

    def __exit__(self, *_):
        for function in self.undo:
            del function.apply


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "olmo2", "granite", "smollm3"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_is_stocks(family, fused):
    stock = model(family).train()
    ours = twin(stock, fused_linear_cross_entropy=fused)
    with Nodes() as nodes, Calls() as calls:
        same_step(ours, stock, batch(), 1e-5)
    assert nodes.made == {"Linked": 3 * LAYERS, "GatedMlp": LAYERS}
    act = "geglu" if family == "gemma2" else "swiglu"
    assert calls.own[f"mlp.{act}_bwd_again_"] == LAYERS and f"mlp.{act}_bwd_" not in calls.own
    assert str(hotswap.report(ours)).count("autograd's own") == 0


def test_without_a_gradient_nothing_of_it_runs():
    ours = twin(model()).eval()
    with Nodes() as nodes, torch.no_grad():
        ours(**batch())
    assert nodes.made == {}


def test_bfloat16_is_no_further_from_float64():
    """The gradients of x meet before they are rounded, on the CPU: on average nearer than sums of rounded ones. cuBLAS on an
    H200 gave the very numbers of such sums."""
    torch.manual_seed(0)
    errors = {"ours": 0.0, "stock": 0.0}
    weights = [torch.randn(48, 64) / 8 for _ in range(3)]
    for seed in range(8):
        x, dy = torch.randn(96, 64), [torch.randn(96, 48) for _ in range(3)]
        wide = sum(d.bfloat16().double() @ w.bfloat16().double() for d, w in zip(dy, weights))
        for name in errors:
            leaf = x.bfloat16().requires_grad_()
            handed_on, outputs = leaf, []
            for w in weights:
                if name == "ours":
                    y, handed_on = hotswap.load("mlp").linked.Linked.apply(handed_on, w.bfloat16(), None)
                else:
                    y = nn.functional.linear(leaf, w.bfloat16())
                outputs.append(y)
            torch.autograd.backward(outputs, [d.bfloat16() for d in dy])
            errors[name] += float((leaf.grad.double() - wide).norm() / wide.norm())
    assert errors["ours"] < errors["stock"] or torch.get_default_device().type == "cuda" and errors["ours"] == errors["stock"]


def linked_three(x, linears):
    handed_on, outputs = x, []
    for linear in linears:
        y, handed_on = hotswap.load("mlp").linked.Linked.apply(handed_on, linear.weight, linear.bias)
        outputs.append(y)
    return outputs


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_whatever_of_the_three_is_used(used):
    linears = [nn.Linear(8, 6), nn.Linear(8, 4, bias=False), nn.Linear(8, 4)]
    x = torch.randn(2, 5, 8, requires_grad=True)
    learning = [x, *(p for i in used for p in linears[i].parameters())]
    ours = linked_three(x, linears)
    stock = [linear(x) for linear in linears]
    for _ in range(2):  # and again through a kept graph
        got = torch.autograd.grad(sum(ours[i].square().sum() for i in used), learning, retain_graph=True)
        want = torch.autograd.grad(sum(stock[i].square().sum() for i in used), learning, retain_graph=True)
        for g, w in zip(got, want, strict=True):
            close(g, w)


def test_a_second_derivative_is_refused():
    x = torch.randn(3, 8, requires_grad=True)
    outputs = linked_three(x, [nn.Linear(8, 4), nn.Linear(8, 4)])
    (first,) = torch.autograd.grad(sum(y.square().sum() for y in outputs), x, create_graph=True)
    with pytest.raises(RuntimeError, match="a derivative of that"):
        first.sum().backward()


def test_what_does_not_learn_costs_nothing():
    stock = model().train()
    for name, p in stock.named_parameters():
        p.requires_grad_(any(part in name for part in ("q_proj", "down_proj", "embed")))
    same_step(twin(stock), stock, batch(), 1e-5)
    frozen = copy.deepcopy(stock)
    for name, p in frozen.named_parameters():
        p.requires_grad_("embed" in name)  # gradients go through the MLPs and end in the embedding
    ours = twin(frozen)
    with Calls() as calls:
        same_step(ours, frozen, batch(), 1e-5)
    assert calls.own["mlp.swiglu_bwd_"] == LAYERS and "mlp.swiglu_bwd_again_" not in calls.own


def test_kept_graphs_checkpoints_and_hooks():
    stock = model().train()
    ours = twin(stock, fused_linear_cross_entropy=True)
    want = gradients(stock, stock(**batch()).loss)
    loss = ours(**batch()).loss
    ours.zero_grad(set_to_none=True)
    with Calls() as calls:
        loss.backward(retain_graph=True)
    assert calls.own["mlp.swiglu_bwd"] == LAYERS
    same_gradients({n: p.grad for n, p in ours.named_parameters()}, want)
    same_gradients(gradients(ours, loss), want)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or len(kept) - 1, lambda i: kept[i]):
        loss = ours(**batch()).loss
    values = [t.detach().clone() for t in kept]
    same_gradients(gradients(ours, loss), want)
    assert all(torch.equal(t.detach(), v) for t, v in zip(kept, values, strict=True))
    for reentrant in (False, True):
        ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        ours.enable_input_require_grads()
        with Calls() as calls:
            same_gradients(gradients(ours, ours(**batch()).loss), want)
        way = "mlp.swiglu_bwd_again_" if reentrant else "mlp.swiglu_bwd_"
        assert calls.own[way] == LAYERS


def test_a_checkpoint_makes_no_more_products_than_stock():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        made = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            self.made += op.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)
            return op(*args, **(kwargs or {}))

    stock, counts = model().train(), []
    for m in (stock, twin(stock)):
        m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        loss = m(**batch()).loss
        with Products() as products:
            loss.backward()
        counts.append(products.made)
    assert counts[0] == counts[1] > 0


def test_projections_that_are_more_than_a_product():
    """Each is called as it is, and the report says so."""

    def stock(change):
        made = model().train()
        change(made.model.layers[0])
        return made

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    def another_class(layer):
        layer.self_attn.k_proj.__class__ = Doubled
        layer.mlp.up_proj.__class__ = Doubled

    def hooked(layer):
        for linear in (layer.self_attn.v_proj, layer.mlp.gate_proj):
            linear.register_forward_hook(lambda module, args, y: 3 * y)

    for change, words in ((another_class, "k_proj has a Doubled"), (hooked, "v_proj has hooks")):
        plain = stock(change)
        ours = twin(plain)
        with Nodes() as nodes:
            same_step(ours, plain, batch(), 1e-5)
        assert nodes.made == {"Linked": 3 * LAYERS - 1 + 1, "GatedMlp": LAYERS - 1}  # of gate and up one is still plain
        assert words in str(hotswap.report(ours))


def test_autocast_and_lora():
    peft = pytest.importorskip("peft")
    stock = model().train()
    ours = twin(stock)
    with torch.autocast(torch.get_default_device().type, torch.bfloat16), Nodes() as nodes:
        ours(**batch()).loss.backward()
    assert nodes.made == {}
    config = lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    made = []
    for before in (stock, twin(stock)):
        torch.manual_seed(5)
        made.append(peft.get_peft_model(before, config()))
    with Nodes() as nodes:
        same_step(made[1], made[0], batch(), 1e-5)
    # gate and up of both layers; k and v of the second: the first one's input has no gradient, embeddings do not learn
    assert nodes.made == {"Linked": 2 * LAYERS + 2}
    assert "q_proj has a Linear with a forward of its own" in str(hotswap.report(made[1]))


def test_an_attention_sees_itself():
    """What a forward reads and writes of its module is the module's own."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))
            self.calls = 0

        def forward(self, x, other=None):
            self.calls += 1
            assert isinstance(self, Attention) and self.q_proj.weight.shape == (8, 8)
            assert [n for n, _ in self.named_children()] == ["q_proj", "k_proj", "v_proj"] and super().__repr__()
            return self.q_proj(x) + self.k_proj(x if other is None else other) * self.v_proj(x)

    attention = Attention()
    forward = projections.linking(Attention.forward)
    for other in (None, torch.randn(3, 8, requires_grad=True)):  # keys of another input: not linked
        x = torch.randn(3, 8, requires_grad=True)
        inputs = [t for t in (x, other) if t is not None]
        got = torch.autograd.grad(forward(attention, x, other).sum(), inputs)
        want = torch.autograd.grad(Attention.forward(attention, x, other).sum(), inputs)
        for g, w in zip(got, want, strict=True):
            close(g, w)
    assert attention.calls == 4 and "_handed_on" not in vars(attention)
