"""Deformable attention with a number of points for each level on a GPU beside transformers' own way; bench/peers.py runs it. With the
same number in all levels, beside the Hub's kernel: deformable.py."""

import torch
from bench.lib.gpu_common import SETS, backward_of, leaves_of
from torch.nn.functional import grid_sample

LEVELS, QUERIES, HEADS, CHANNELS = ((80, 80), (40, 40), (20, 20)), 300, 8, 32  # an image of 640 x 640 pixels
SHAPES = ((1, (4, 4, 4)), (16, (4, 4, 4)), (16, (3, 6, 3)))  # images, points: RT-DETR v2's, and D-FINE's


def plain(value, locations, weights, points):
    """value [images, pixels of all levels, heads, channels], locations [images, queries, heads, points, 2] in 0 to 1, weights without the 2."""
    images, queries = locations.shape[:2]
    grids, taken, begin = (2 * locations - 1).transpose(1, 2).flatten(0, 1), [], 0
    for level, (height, width), count in zip(value.split([h * w for h, w in LEVELS], 1), LEVELS, points, strict=True):
        image = level.flatten(2).transpose(1, 2).reshape(-1, CHANNELS, height, width)
        taken.append(grid_sample(image, grids[:, :, begin : begin + count], padding_mode="zeros", align_corners=False))
        begin += count
    weights = weights.transpose(1, 2).reshape(-1, 1, queries, begin)
    y = (torch.cat(taken, -1) * weights).sum(-1)
    return y.view(images, HEADS * CHANNELS, queries).transpose(1, 2)


def run(c):
    for images, points in SHAPES:
        shape = f"{images} images of {'+'.join(map(str, points))} points"
        if c.wants_some(("deformable_attention_points", "deformable_attention_points_bwd"), shape):
            one_shape(c, shape, images, points)


def one_shape(c, shape, images, points):
    ops, pixels, total = c.ops["deformable"], sum(h * w for h, w in LEVELS), sum(points)
    sizes = torch.tensor(LEVELS, device="cuda")
    starts = sizes.prod(1).cumsum(0) - sizes.prod(1)
    made = lambda *s: [torch.rand(*s, device="cuda").bfloat16() for _ in range(SETS)]
    value, dy = made(images, pixels, HEADS, CHANNELS), made(images, QUERIES, HEADS * CHANNELS)
    locations, weights = made(images, QUERIES, HEADS, total, 2), made(images, QUERIES, HEADS, total)
    inputs = [(v, sizes, starts, at, w) for v, at, w in zip(value, locations, weights, strict=True)]
    leaf = leaves_of(value, locations, weights)
    theirs = lambda *t: plain(*t, points)

    def gradients():
        wide = [t.detach().double().requires_grad_() for t in leaf[0]]
        expected = plain(*wide, points)
        got = ops.deformable_attention_points(*inputs[0], points)
        return (got, *ops.deformable_attention_points_bwd(dy[0], *inputs[0], points)), (
            expected, *torch.autograd.grad(expected, wide, dy[0].double()))  # fmt: skip

    with torch.no_grad():
        c.run("deformable_attention_points", shape, {
            "ours": lambda i: ops.deformable_attention_points(*inputs[i], points),
            "transformers": lambda i: plain(value[i], locations[i], weights[i], points),
        })  # fmt: skip
    c.run("deformable_attention_points_bwd", shape, {
        "ours": lambda i: ops.deformable_attention_points_bwd(dy[i], *inputs[i], points),
        "transformers": backward_of([theirs(*t) for t in leaf], leaf, dy),
    }, check=gradients)  # fmt: skip
