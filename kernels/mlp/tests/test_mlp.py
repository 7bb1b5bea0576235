"""The built package through the user's door: kernels/conftest.py loads it."""

import copy
import re

import pytest
import torch

LIMIT = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}  # GEMMs of 16-bit numbers on both sides


def close(got, want, limit):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= limit * want.double().norm()


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize(
    "name, act, op",
    [("SwiGLUMLP", "silu", "swiglu"), ("LigerSwiGLUMLP", "silu", "swiglu"), ("LigerGEGLUMLP", "gelu_pytorch_tanh", "geglu")],
)
def test_layer_in_place_of_llama_mlp(package, ops, dtype, name, act, op):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    stock = LlamaMLP(LlamaConfig(hidden_size=48, num_attention_heads=4, intermediate_size=80, hidden_act=act)).to(dtype)
    x = torch.randn(2, 5, 48, dtype=dtype, requires_grad=True)
    before = {o: ops.call_count(o) for o in (op, f"{op}_bwd_")}
    y = getattr(package.layers, name).forward(stock, x)
    dy = torch.randn_like(y)
    y.backward(dy)
    assert {o: ops.call_count(o) - n for o, n in before.items()} == dict.fromkeys(before, 1)
    wide = copy.deepcopy(stock).double()
    wide.zero_grad()
    x2 = x.detach().double().requires_grad_()
    want = wide(x2)
    want.backward(dy.double())
    close(y, want, LIMIT[dtype])
    close(x.grad, x2.grad, LIMIT[dtype])
    for a, b in zip(stock.parameters(), wide.parameters()):
        close(a.grad, b.grad, LIMIT[dtype])


@pytest.mark.parametrize("name, act, op", [("SwiGLUMLP", "silu", "swiglu"), ("GeGLUMLP", "gelu_pytorch_tanh", "geglu")])
@pytest.mark.parametrize("bias", [False, True])
def test_layouts_are_the_mlp_with_gate_and_up_in_one(package, ops, name, act, op, bias):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    config = LlamaConfig(hidden_size=48, num_attention_heads=4, intermediate_size=80, hidden_act=act, mlp_bias=bias)
    stock, layout = LlamaMLP(config), getattr(package.layers, f"Packed{name}Layout")(config)
    state = {}
    for key, value in stock.state_dict().items():  # in the order gate, up, down
        packed = re.sub("^(gate|up)_proj", "gate_up_proj", key)
        state[packed] = torch.cat([state[packed], value]) if packed in state else value
    layout.load_state_dict(state)
    x, before = torch.randn(2, 5, 48), ops.call_count(op)
    want = stock(x)
    close(layout(x), want, 2e-6)
    assert ops.call_count(op) == before
    close(getattr(package.layers, f"Packed{name}").forward(layout, x), want, 2e-6)
    assert ops.call_count(op) == before + 1
    config.hidden_act = "relu"
    with pytest.raises(ValueError, match="expected hidden_act of .*; got relu"):
        type(layout)(config)


@pytest.mark.parametrize("op", ["swiglu", "geglu"])
def test_halves_of_a_packed_projection(package, op):
    packed = torch.randn(4, 6, 2 * 24, requires_grad=True)
    gate, up = packed.chunk(2, dim=-1)
    y = getattr(package, op)(gate, up)
    assert torch.equal(y, getattr(package, op)(gate.contiguous(), up.contiguous()))
    y.sum().backward()
    assert packed.grad.abs().min() >= 0 and packed.grad.shape == packed.shape


@pytest.mark.parametrize("op", ["swiglu", "geglu"])
def test_opcheck(ops, op):
    gate, up = torch.randn(2, 3, 40, requires_grad=True).chunk(2, dim=-1)
    torch.library.opcheck(getattr(ops, op).default, (gate, up))


def _keep(held, t):
    held.append(t)
    return t


def _in_numpy(held, t):
    held.append(torch.from_numpy(t.detach().numpy()))
    return t


# what is done with gate before the op sees it -> may its memory become the gradient's?
HOLDERS = {
    "nobody": (lambda held, t: t, True),
    "a hook on its gradient": (lambda held, t: t.register_hook(lambda g: None) and t, True),
    "a variable": (_keep, False),
    "a detached one": (lambda held, t: held.append(t.detach()) or t, False),
    "a view": (lambda held, t: held.append(t[0]) or t, False),
    "numpy": (_in_numpy, False),
    "a view is the input": (lambda held, t: _keep(held, t)[:], False),
    "a node that runs later": (lambda held, t: held.append((t * t).sum()) or t, False),
}


@pytest.mark.parametrize("op", ["swiglu", "geglu"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_gradients_go_over_what_only_the_graph_holds(package, ops, op, holder):
    """And nowhere else: whatever can still be read keeps its numbers."""
    hold, in_place = HOLDERS[holder]
    x = torch.randn(3, 8, requires_grad=True)

    def run(fn):
        held = []
        y = fn(hold(held, x * 2), x * 3).sum()
        extra = [h for h in held if h.requires_grad and h.ndim == 0]
        values = [h.detach().clone() for h in held]
        x.grad = None
        (y + sum(extra)).backward()
        assert all(torch.equal(h.detach(), v) for h, v in zip(held, values, strict=True))
        return x.grad

    before = ops.call_count(f"{op}_bwd_"), ops.call_count(f"{op}_bwd")
    got = run(getattr(package, op))
    made = ops.call_count(f"{op}_bwd_") - before[0], ops.call_count(f"{op}_bwd") - before[1]
    assert made == ((1, 0) if in_place else (0, 1))
    act = torch.nn.functional.silu if op == "swiglu" else lambda g: torch.nn.functional.gelu(g, approximate="tanh")
    close(got, run(lambda gate, up: act(gate) * up), 2e-6)


@pytest.mark.parametrize("op", ["swiglu", "geglu"])
def test_a_graph_that_is_kept_or_recomputed(package, ops, op):
    from torch.utils.checkpoint import checkpoint

    fn, count = getattr(package, op), ops.call_count
    x = torch.randn(3, 8, requires_grad=True)
    y = fn(x * 2, x * 3).sum()
    before = count(f"{op}_bwd"), count(f"{op}_bwd_")
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)
    assert (count(f"{op}_bwd") - before[0], count(f"{op}_bwd_") - before[1]) == (1, 1)
    for reentrant in (False, True):  # as gradient checkpointing makes gate and up again
        y = checkpoint(lambda x: fn(x * 2, x * 3), x, use_reentrant=reentrant).sum()
        x.grad = None
        y.backward()
        assert torch.equal(x.grad, first)
    assert (count(f"{op}_bwd") - before[0], count(f"{op}_bwd_") - before[1]) == (1, 3)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or len(kept) - 1, lambda i: kept[i]):
        y = fn(x * 2, x * 3).sum()
    values = [t.detach().clone() for t in kept]
    assert torch.equal(torch.autograd.grad(y, x)[0], first)
    assert all(torch.equal(t.detach(), v) for t, v in zip(kept, values, strict=True))
    assert count(f"{op}_bwd") - before[0] == 2
