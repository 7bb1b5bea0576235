"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

import torch

WIDE = r"deformable_forward<.*BFloat16, 8, \d+>"
SHAPES = ((9, 13), (5, 7), (3, 4), (2, 2))
ROWS = sum(height * width for height, width in SHAPES)


def inputs(random, queries=70, channels=32):
    value, dy = random(2, ROWS, 8, channels), random(2, queries, 8 * channels)
    locations, weights = random(2, queries, 8, 4, 4, 2).float().sigmoid() * 1.2 - 0.1, random(2, queries, 8, 4, 4).float()
    shapes = torch.tensor(SHAPES, device=value.device)
    rows = shapes.prod(1)
    return dy, value, shapes, rows.cumsum(0) - rows, locations, weights


def cases(ops, random, names):
    dy, *given = inputs(random)
    on_cpu = [t.cpu() for t in given[1:3]]
    odd_dy, *odd = inputs(random, queries=3, channels=7)
    wide_dy, *wide = inputs(random, channels=72)
    points = [*given[:3], given[3].flatten(3, 4), given[4].flatten(3, 4), [3, 5, 7, 1]]

    return {
        "deformable_attention": lambda: ops.deformable_attention(*given),
        "deformable_attention, odd": lambda: ops.deformable_attention(*odd),
        "deformable_attention, sizes on the CPU": lambda: ops.deformable_attention(given[0], *on_cpu, *given[3:]),
        "deformable_attention_bwd": lambda: ops.deformable_attention_bwd(dy, *given),
        "deformable_attention_bwd, odd": lambda: ops.deformable_attention_bwd(odd_dy, *odd),
        "deformable_attention_bwd, wide": lambda: ops.deformable_attention_bwd(wide_dy, *wide),
        # of value's gradient the additions have no order that could be the same
        "deformable_attention_bwd_unordered": lambda: ops.deformable_attention_bwd_unordered(dy, *given)[1:],
        "deformable_attention_points": lambda: ops.deformable_attention_points(*points),
        "deformable_attention_points_bwd": lambda: ops.deformable_attention_points_bwd(dy, *points),
    }  # fmt: skip


def large(ops, x, random):
    """Queries beyond 2^31 numbers, each with one sample in one of four pixels; and images of which not all are sorted at
    once, with more pixels than samples and with fewer."""
    value, shapes, starts = random(1, 4, 1, x.shape[1]), torch.tensor([[2, 2]], device=x.device), torch.tensor([0], device=x.device)

    def attend(t):  # [queries, channels], of which two are a query's place
        places = t[:, :2].float().sigmoid().view(1, -1, 1, 1, 1, 2).contiguous()
        weights = t[:, 2].float().view(1, -1, 1, 1, 1).contiguous()
        return ops.deformable_attention(value, shapes, starts, places, weights)[0]

    height, width = 2048, 2049
    numbers = x.flatten()[: 8 * height * width * 64]

    def gradient_of(heads):
        dy, places = random(1, 70, 64), random(1, 70, heads, 1, 2, 2).float().sigmoid()
        sizes, first = torch.tensor([[height, width]], device=x.device), torch.tensor([0], device=x.device)

        def call(value):  # each image's queries are the same
            of_all = [t.expand(value.shape[0], *t.shape[1:]).contiguous() for t in (dy, places, places[..., 0])]
            return ops.deformable_attention_bwd(of_all[0], value, sizes, first, *of_all[1:])[0]

        return numbers.view(8, height * width, heads, 64 // heads), call

    return {
        "deformable_attention": (x, attend),
        "deformable_attention_bwd": gradient_of(8),
        "deformable_attention_bwd, three images at a time": gradient_of(64),
    }
