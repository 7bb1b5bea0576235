"""The built package through the user's door: kernels/conftest.py loads it."""

import math

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3, 4, 7])
@pytest.mark.parametrize("bias", [False, True])
def test_forward_and_backward_match_float64(ops, dtype, rows, bias):
    torch.manual_seed(rows)
    for out, size in ((5, 33), (64, 576), (1, 1), (130, 97)):
        x = torch.randn(2, rows, size).to(dtype)[0].requires_grad_()
        w = torch.randn(out, size).to(dtype).requires_grad_()
        b = torch.randn(out).to(dtype).requires_grad_() if bias else None
        before = ops.call_count("linear"), ops.call_count("linear_bwd")
        y = ops.linear(x, w, b)
        dy = torch.randn_like(y)
        y.backward(dy)
        assert (ops.call_count("linear"), ops.call_count("linear_bwd")) == (before[0] + 1, before[1] + 1)
        x2, w2 = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
        b2 = b.detach().double().requires_grad_() if bias else None
        want = torch.nn.functional.linear(x2, w2, b2)
        want.backward(dy.double())
        # unit roundoff of the output's dtype, and float32 accumulation
        limit = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
        pairs = [(y, want), (x.grad, x2.grad), (w.grad, w2.grad)] + ([(b.grad, b2.grad)] if bias else [])
        for got, expected in pairs:
            assert got.shape == expected.shape and got.dtype == dtype
            assert (got.double() - expected).norm() <= limit * expected.norm() + 1e-12


def test_layer_under_inference(package):
    layer = torch.nn.Linear(32, 8)
    x = torch.randn(1, 1, 32)
    want = layer(x)
    layer.forward = package.layers.Linear.forward.__get__(layer)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), want.detach())


def test_packed_weights_are_the_numbers_of_their_blocks(ops):
    torch.manual_seed(0)
    d, q = torch.randn(7, 3, 1).half(), torch.randint(-128, 128, (7, 3, 32), dtype=torch.int8)
    blocks = torch.cat([d.view(torch.uint8), q.view(torch.uint8)], -1).reshape(7, -1)  # Q8_0
    x, bias = torch.randn(2, 96), torch.randn(7)
    nothing_beside = (None, None, None, None, None, 0, 1)
    before = ops.call_count("packed_linear")
    y = ops.packed_linear(x, blocks, *nothing_beside, "q8_0", 96, bias)
    assert ops.call_count("packed_linear") == before + 1
    want = torch.nn.functional.linear(x.double(), (d.double() * q.double()).reshape(7, 96), bias.double())
    assert (y - want).norm() <= 2e-6 * want.norm()  # float32 sums
    torch.library.opcheck(ops.packed_linear.default, (x, blocks, *nothing_beside, "q8_0", 96, None))
    with pytest.raises(RuntimeError, match='expected the format q8_0, q4_0, .*, e4m3_g128 or mxfp4; got "int4"'):
        ops.packed_linear(x, blocks, *nothing_beside, "int4", 96, bias)
    with pytest.raises(RuntimeError, match=r"data \[out, 54\]"):
        ops.packed_linear(x, blocks, *nothing_beside, "q4_0", 96, bias)


def test_opcheck(ops):
    for rows in (1, 6):
        args = torch.randn(rows, 33, requires_grad=True), torch.randn(5, 33, requires_grad=True), torch.randn(5)
        torch.library.opcheck(ops.linear.default, args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_largest_is_where_torch_finds_it(ops, dtype):
    torch.manual_seed(0)
    x = torch.randn(3, 5000).to(dtype)
    place = torch.full((3, 1), -1)
    before = ops.call_count("largest_")
    ops.largest_(place, x)
    assert ops.call_count("largest_") == before + 1
    assert torch.equal(place[:, 0], x.double().argmax(-1))
    torch.library.opcheck(ops.largest_.default, (place, x))
    said, at = torch.full((4, 3), -1), torch.tensor([2])
    ops.largest_(place, x, said, at)
    assert torch.equal(said, torch.cat([torch.full((2, 3), -1), place.view(1, 3), torch.full((1, 3), -1)]))
    torch.library.opcheck(ops.largest_.default, (place, x, said, at))


@pytest.mark.parametrize("temperature, top_k, top_p, min_p", [(1, 0, 1, 0), (0.7, 0, 0.9, 0), (1.3, 12, 1, 0), (0.7, 20, 0.8, 0), (1, 0, 1, 0.05)])
def test_a_grid_of_draws_has_the_probabilities_of_transformers(ops, temperature, top_k, top_p, min_p):
    """Of n evenly spaced points in [0, 1) a token gets n times its probability, but for the one at each end."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(0)
    n, logits = 4000, torch.randn(1, 50) * 2
    warpers = [TemperatureLogitsWarper(float(temperature)), TopKLogitsWarper(top_k) if top_k else None, TopPLogitsWarper(top_p), MinPLogitsWarper(min_p)]
    scores = logits
    for warper in filter(None, warpers):
        scores = warper(None, scores)
    row = [1 / temperature, top_k, top_p, math.log(min_p) if min_p else -math.inf]
    settings = torch.tensor([[*row, (i + 0.5) / n] for i in range(n)], dtype=torch.float64)
    counts = ops.sample(logits.expand(n, 50), settings).bincount(minlength=50)
    assert (counts - n * scores.double().softmax(-1)[0]).abs().max() <= 1
    torch.library.opcheck(ops.sample.default, (logits, settings[:1]))


def test_errors_name_the_shapes(ops):
    with pytest.raises(RuntimeError, match=r"expected x \[\.\.\., 3\]"):
        ops.linear(torch.zeros(1, 4), torch.zeros(2, 3), None)
    with pytest.raises(RuntimeError, match="expected weight in x's dtype"):
        ops.linear(torch.zeros(1, 3), torch.zeros(2, 3, dtype=torch.bfloat16), None)
