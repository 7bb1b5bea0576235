"""The built package through the user's door: kernels/conftest.py loads it."""

import pytest
import torch

LIMIT = {torch.float32: 5e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}  # two roundings; float32: places, sums


def close(got, want, limit):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= limit * want.double().norm()


def pyramid(*sizes):
    shapes = torch.tensor(sizes)
    rows = shapes.prod(1)
    return shapes, rows.cumsum(0) - rows


def inputs(sizes, batch=2, queries=5, heads=2, channels=8, points=3, dtype=torch.float32):
    shapes, starts = pyramid(*sizes)
    value = torch.randn(batch, int(shapes.prod(1).sum()), heads, channels, dtype=dtype)
    places = torch.rand(batch, queries, heads, len(sizes), points, 2, dtype=dtype) * 1.2 - 0.1
    weights = torch.rand(batch, queries, heads, len(sizes), points, dtype=dtype) + 1e-5
    weights = weights / weights.sum((-1, -2), keepdim=True)
    return value.requires_grad_(), shapes, starts, places.requires_grad_(), weights.requires_grad_()


def of_transformers():
    from transformers.models.deformable_detr.modeling_deformable_detr import MultiScaleDeformableAttention

    return MultiScaleDeformableAttention()


@pytest.mark.parametrize("dtype", LIMIT)
def test_layer_in_place_of_the_stock_one(package, ops, dtype):
    sizes = [(9, 13), (5, 7), (2, 3)]
    value, shapes, starts, places, weights = given = inputs(sizes, dtype=dtype)
    stock = of_transformers()
    before = {op: ops.call_count(op) for op in ("deformable_attention", "deformable_attention_bwd")}
    y = package.layers.MultiScaleDeformableAttention.forward(stock, value, shapes, sizes, starts, places, weights, 64)
    dy = torch.randn_like(y)
    got = torch.autograd.grad(y, [value, places, weights], dy)
    assert {op: ops.call_count(op) - n for op, n in before.items()} == dict.fromkeys(before, 1)
    assert y.dtype == dtype and [g.dtype for g in got] == [dtype] * 3
    wide = [t.detach().double().requires_grad_() if t.is_floating_point() else t for t in given]
    want = stock(*wide[:2], sizes, *wide[2:], 64)
    close(y, want, LIMIT[dtype])
    for a, b in zip(got, torch.autograd.grad(want, [wide[0], wide[3], wide[4]], dy.double()), strict=True):
        close(a, b, LIMIT[dtype])


# The sizes of Deformable-DETR's own test, which asks a kernel for each way that theirs has of summing channels, and mmcv's.
@pytest.mark.parametrize("channels", [1, 4, 30, 32, 64, 71, 1025, 2048, 3096])
def test_gradients_numerically(package, channels):
    value, shapes, starts, places, weights = inputs(
        [(6, 4), (3, 2)], batch=1, queries=2, channels=channels, points=2, dtype=torch.float64
    )
    value = (value.detach() * 0.01).requires_grad_()
    attend = lambda *t: package.deformable_attention(t[0], shapes, starts, *t[1:])
    assert torch.autograd.gradcheck(attend, (value, places, weights), fast_mode=channels > 100)


def test_gradients_numerically_of_a_level_of_one_pixel(package):
    value, shapes, starts, places, weights = inputs([(2, 2), (1, 1)], channels=1, points=2, dtype=torch.float64)
    attend = lambda *t: package.deformable_attention(t[0], shapes, starts, *t[1:])
    assert torch.autograd.gradcheck(attend, (value, places, weights))


def test_gradients_numerically_with_points_of_their_own(package):
    value, shapes, starts, places, weights = inputs([(6, 4), (3, 2)], points=2, channels=3, dtype=torch.float64)
    places, weights = (t.detach().flatten(3, 4).requires_grad_() for t in (places, weights))
    attend = lambda *t: package.deformable_attention_points(t[0], shapes, starts, *t[1:], [3, 1])
    assert torch.autograd.gradcheck(attend, (value, places, weights))


def test_points_of_levels_side_by_side(package):
    value, shapes, starts, places, weights = inputs([(6, 4), (3, 2)])
    want = package.deformable_attention(value, shapes, starts, places, weights)
    flat = places.flatten(3, 4), weights.flatten(3, 4)
    assert torch.equal(package.deformable_attention_points(value, shapes, starts, *flat, [3, 3]), want)


def test_types_of_autocast(package):
    value, shapes, starts, places, weights = inputs([(6, 4), (3, 2)])
    short = value.detach().bfloat16().requires_grad_()
    y = package.deformable_attention(short, shapes, starts, places, weights)
    gradients = torch.autograd.grad(y.float().sum(), [short, places, weights])
    assert y.dtype == torch.bfloat16
    assert [g.dtype for g in gradients] == [torch.bfloat16, torch.float32, torch.float32]


def test_gradients_of_a_part(package):
    value, shapes, starts, places, weights = inputs([(6, 4)])
    y = package.deformable_attention(value.detach(), shapes, starts, places, weights.detach())
    (dplaces,) = torch.autograd.grad(y.sum(), places)
    whole = package.deformable_attention(value, shapes, starts, places, weights)
    assert torch.equal(dplaces, torch.autograd.grad(whole.sum(), places)[0])


def test_opcheck(ops):
    given = inputs([(6, 4), (3, 2)])
    torch.library.opcheck(ops.deformable_attention.default, given)
    torch.library.opcheck(ops.deformable_attention.default, (given[0].detach().bfloat16(), *given[1:]))
    flat = given[3].detach().flatten(3, 4).requires_grad_(), given[4].detach().flatten(3, 4).requires_grad_()
    torch.library.opcheck(ops.deformable_attention_points.default, (*given[:3], *flat, [2, 4]))
    plain = tuple(t.detach() for t in given)
    dy = torch.randn(2, 5, 16)
    torch.library.opcheck(ops.deformable_attention_bwd.default, (dy, *plain))
    torch.library.opcheck(ops.deformable_attention_bwd_unordered.default, (dy, *plain))
    torch.library.opcheck(
        ops.deformable_attention_points_bwd.default, (dy, *plain[:3], *(t.detach() for t in flat), [2, 4])
    )


def test_compiled_in_one_graph(package):
    value, shapes, starts, places, weights = inputs([(6, 4), (3, 2)])
    attend = lambda *t: (package.deformable_attention(t[0], shapes, starts, *t[1:]) * 2).sum()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(value, places, weights), [value, places, weights])
    want = torch.autograd.grad(attend(value, places, weights), [value, places, weights])
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_errors_name_what_was_wanted(package):
    value, shapes, starts, places, weights = inputs([(6, 4), (3, 2)])
    shapes, starts = shapes.cpu(), starts.cpu()  # on a GPU nobody waits for them
    with pytest.raises(RuntimeError, match=r"expected levels one behind the other in the 30 rows of value"):
        package.deformable_attention(value, shapes, starts + 1, places, weights)
    with pytest.raises(RuntimeError, match=r"expected points of 2 levels, as spatial_shapes has; got 1"):
        package.deformable_attention(value, shapes, starts, places[:, :, :, :1], weights[:, :, :, :1])
