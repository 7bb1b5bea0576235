"""The built package through the user's door: kernels/conftest.py loads it."""

import math

import pytest
import torch

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2**-5, torch.float16: 2**-8}  # 16-bit numbers between products on both sides


def close(got, want, limit):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= limit * want.double().norm()


def swiglu(x, index, weights, w_up, w_down):
    """In x's dtype, expert by expert."""
    y = torch.zeros_like(x)
    for e in range(w_up.shape[0]):
        token, j = (index == e).nonzero(as_tuple=True)
        gate, up = (x[token] @ w_up[e].T).chunk(2, -1)
        rows = (torch.nn.functional.silu(gate) * up) @ w_down[e].T
        y = y.index_add(0, token, weights[token, j].unsqueeze(1).to(x.dtype) * rows)
    return y


def tensors(dtype=torch.float32, tokens=11, experts=5, hidden=24, inner=16, top_k=2):
    x = torch.randn(tokens, hidden, dtype=dtype)
    weights = torch.rand(tokens, top_k)
    w_up, w_down = torch.randn(experts, 2 * inner, hidden, dtype=dtype) / 5, torch.randn(experts, hidden, inner, dtype=dtype) / 4
    leaves = [t.requires_grad_() for t in (x, weights, w_up, w_down)]
    return leaves, torch.randint(experts, (tokens, top_k))


def call(package, leaves, index, **options):
    x, weights, w_up, w_down = leaves
    return package.experts(x, index, weights, w_up, None, w_down, None, **options)


@pytest.mark.parametrize("dtype", LIMIT)
def test_experts_and_their_gradients(package, ops, dtype):
    leaves, index = tensors(dtype)
    before = {op: ops.call_count(op) for op in ("moe_experts", "moe_experts_train", "moe_experts_bwd_")}
    y = call(package, leaves, index)
    dy = torch.randn_like(y)
    got = torch.autograd.grad(y, leaves, dy)
    with torch.no_grad():
        assert torch.equal(call(package, leaves, index), y)
    assert all(ops.call_count(op) == n + 1 for op, n in before.items())  # h is nobody's but the graph's: in place
    wide = [t.detach().double().requires_grad_() for t in leaves]
    want = swiglu(wide[0], index, *wide[1:])
    close(y, want, LIMIT[dtype])
    for a, b in zip(got, torch.autograd.grad(want, wide, dy.double())):
        close(a, b, LIMIT[dtype])


def test_a_graph_that_is_kept_or_recomputed(package, ops):
    from torch.utils.checkpoint import checkpoint

    leaves, index = tensors()
    y = call(package, leaves, index).sum()
    before = ops.call_count("moe_experts_bwd"), ops.call_count("moe_experts_bwd_")
    first = torch.autograd.grad(y, leaves, retain_graph=True)
    second = torch.autograd.grad(y, leaves)
    assert (ops.call_count("moe_experts_bwd") - before[0], ops.call_count("moe_experts_bwd_") - before[1]) == (1, 1)
    third = torch.autograd.grad(checkpoint(lambda *t: call(package, t, index), *leaves, use_reentrant=False).sum(), leaves)
    fourth = torch.autograd.grad(ops.moe_experts(leaves[0], index, leaves[1], leaves[2], None, leaves[3], None, *SWIGLU).sum(), leaves)
    for others in (second, third, fourth):
        assert all(torch.equal(a, b) for a, b in zip(first, others, strict=True))


SWIGLU = ("swiglu", 1.0, math.inf, False, False, False)


def test_frozen_experts_get_no_gradient(package):
    leaves, index = tensors()
    want = torch.autograd.grad(call(package, leaves, index).sum(), leaves[0])[0]
    for t in leaves[2:]:
        t.requires_grad_(False)
    call(package, leaves, index).sum().backward()
    assert torch.equal(leaves[0].grad, want) and leaves[2].grad is None


def test_wider_inputs_under_autocast(package):
    (x, weights, w_up, w_down), index = tensors()
    narrow = w_up.detach().bfloat16(), w_down.detach().bfloat16()
    y = package.experts(x, index, weights, narrow[0], None, narrow[1], None)
    assert y.dtype == torch.float32
    assert torch.equal(y, package.experts(x.bfloat16(), index, weights, narrow[0], None, narrow[1], None).float())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_opcheck(ops, transposed, bias):
    experts, hidden, inner = 3, 8, 6
    shapes = [(experts, 2 * inner, hidden), (experts, hidden, inner)]
    w_up, w_down = (torch.randn(a, c, b) if transposed else torch.randn(a, b, c) for a, b, c in shapes)
    leaves = [torch.randn(4, hidden), torch.rand(4, 2), w_up, w_down]
    x, weights, w_up, w_down = (t.requires_grad_() for t in leaves)
    b_up, b_down = (torch.randn(experts, 2 * inner), torch.randn(experts, hidden)) if bias else (None, None)
    inputs = (x, torch.randint(experts, (4, 2)), weights, w_up, b_up, w_down, b_down)
    options = ("swiglu", 1.0, math.inf, False, transposed, False)
    torch.library.opcheck(ops.moe_experts.default, (*inputs, *options))
    plain = tuple(t.detach() if t is not None else None for t in inputs)
    saved = ops.moe_experts_train(*plain, *options)[1:]
    for op in (ops.moe_experts_bwd, ops.moe_experts_bwd_):
        torch.library.opcheck(op.default, (torch.randn(4, hidden), *plain, *saved, *options, True))


def test_compiled_in_one_graph(package):
    leaves, index = tensors()
    fn = torch.compile(lambda *t: call(package, t, index), fullgraph=True, backend="aot_eager")
    got, want = fn(*leaves), call(package, leaves, index)
    assert torch.equal(got, want)
    for a, b in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves)):
        assert torch.equal(a, b)


def test_experts_in_place_of_an_experts_class(package, ops):
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    stock = Qwen3MoeExperts(Qwen3MoeConfig(hidden_size=24, moe_intermediate_size=16, num_experts=5, num_experts_per_tok=2))
    for p in stock.parameters():
        p.data.normal_(std=0.2)
    (x, weights, *_), index = tensors()
    before = ops.call_count("moe_experts_train")
    got = package.layers.Experts.forward(stock, x, index, weights)
    assert ops.call_count("moe_experts_train") == before + 1
    close(got, type(stock).forward.__wrapped__(stock, x, index, weights), 1e-5)


@pytest.mark.parametrize("name", ["MegaBlocksMoeMLP", "CPUMegaBlocksMoeMLP"])
def test_gpt_oss(package, name):
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    stock = GptOssMLP(GptOssConfig(hidden_size=24, intermediate_size=16, num_local_experts=5, num_experts_per_tok=2))
    for p in stock.parameters():
        p.data.normal_(std=0.5)
    x, seen = torch.randn(2, 7, 24, requires_grad=True), []
    stock.router.register_forward_hook(lambda module, given, result: seen.append(result))
    got, want = getattr(package.layers, name).forward(stock, x), stock(x)
    assert len(seen) == 2 and len(got) == len(want) == 2
    close(got[0], want[0], 1e-5)
    close(got[1], want[1], 1e-6)
    close(torch.autograd.grad(got[0].sum(), x)[0], torch.autograd.grad(want[0].sum(), x)[0], 1e-5)


def test_llama4(package):
    from transformers import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextMoe

    config = Llama4TextConfig(hidden_size=24, intermediate_size=16, intermediate_size_mlp=16, num_local_experts=5, num_experts_per_tok=1)
    stock = Llama4TextMoe(config)
    for p in stock.parameters():
        p.data.normal_(std=0.3)
    x = torch.randn(2, 7, 24, requires_grad=True)
    got, want = package.layers.Llama4TextMoe.forward(stock, x), stock(x.clone())
    assert len(got) == len(want) == 2
    close(got[0], want[0], 1e-5)
    close(got[1], want[1], 1e-6)
    assert got[0].shape == want[0].shape and got[1].shape == want[1].shape
    parameters = [x, *stock.parameters()]
    for a, b in zip(torch.autograd.grad(got[0].sum(), parameters), torch.autograd.grad(want[0].sum(), parameters)):
        close(a, b, 1e-5)
