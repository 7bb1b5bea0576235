"""The built package through the user's door: kernels/conftest.py loads it."""

import pytest
import torch

LIMIT = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}  # transformers rounds three times


def close(got, want):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= LIMIT[got.dtype] * want.double().norm()


def inputs(dtype, table_dtype, width=64):
    q = torch.randn(2, 7, 9, 64, dtype=dtype).transpose(1, 2).requires_grad_()
    k = torch.randn(2, 7, 3, 64, dtype=dtype).transpose(1, 2).requires_grad_()
    angle = torch.randn(1, 7, width)
    return q, k, angle.cos().to(table_dtype), angle.sin().to(table_dtype)


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("float32_tables", [False, True])
def test_layer_is_apply_rotary_pos_emb(package, ops, dtype, float32_tables):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k, cos, sin = inputs(dtype, torch.float32 if float32_tables else dtype)
    dq, dk = torch.randn_like(q), torch.randn_like(k)
    before = {op: ops.call_count(op) for op in ("rotary", "rotary_bwd")}
    got = package.layers.apply_rotary_transformers()(q, k, cos, sin)
    gradients = torch.autograd.grad(got, (q, k), (dq, dk))
    assert {op: ops.call_count(op) - n for op, n in before.items()} == dict.fromkeys(before, 1)
    wide = [t.detach().double().requires_grad_() for t in (q, k)]
    want = apply_rotary_pos_emb(*wide, cos.double(), sin.double())
    for a, b in zip(got, want):
        close(a, b)
    for a, b in zip(gradients, torch.autograd.grad(want, wide, (dq.double(), dk.double()))):
        close(a, b)
    assert got[0].stride() == q.stride()


def test_unsqueeze_dim_and_tables_of_half_width(package):
    q, k, cos, sin = inputs(torch.float32, torch.float32, width=32)
    layer = package.layers.rotary_pos_emb()
    want = layer(q, k, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
    for a, b in zip(layer(q, k, cos, sin), want):
        assert torch.equal(a, b)
    for a, b in zip(layer(q.transpose(1, 2), k.transpose(1, 2), cos, sin, unsqueeze_dim=2), want):
        assert torch.equal(a.transpose(1, 2), b)
    for a, b in zip(layer(q, k, cos[0], sin[0], unsqueeze_dim=0), want):  # Pixtral's tables have no batch
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="expected unsqueeze_dim"):
        layer(q, k, cos, sin, unsqueeze_dim=0)


def test_in_place(package):
    q, k, cos, sin = (t.detach() for t in inputs(torch.float32, torch.float32))
    want = package.apply_rotary(q, k, cos, sin)
    got = package.apply_rotary_(q, k, cos, sin)
    assert got[0] is q and torch.equal(q, want[0]) and torch.equal(k, want[1])


def test_opcheck(ops):
    torch.library.opcheck(ops.rotary.default, (*inputs(torch.float32, torch.float32), 64, False))


def test_tables_that_want_a_gradient_are_refused(package):
    q, k, cos, sin = inputs(torch.float32, torch.float32)
    with pytest.raises(NotImplementedError, match="cos and sin without gradient"):
        package.apply_rotary(q, k, cos.requires_grad_(), sin)
