"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

import math

import torch

WIDE = r"few_rows_kernel<.*BFloat16, 8, "
WIDER = False
STORES_FEW = True
SPILLS = {  # of 64 registers, which leave room for the next launch beside it: two; where x of 16 rows is held, some more
    r"few_rows_kernel<.*, 16, ": 16,
    r"few_rows_held_kernel<": 72,
}


def cases(ops, random, names):
    weight, bias = random(4096, 1024), random(4096)
    one, five, many = random(1, 1024), random(5, 1024), random(16, 1024)
    dy, place = random(5, 4096), torch.empty(16, dtype=torch.int64, device=weight.device)

    def largest(x):
        ops.largest_(place[: len(x)], x)
        return place[: len(x)].clone()

    said, at = torch.zeros(7, 16, dtype=torch.int64, device=weight.device), torch.full((1,), 5, device=weight.device)

    def largest_said(x):
        ops.largest_(place, x, said, at)
        return said.clone()

    logits = torch.cat([random(16, 32003), random(16, 32003) * 6])
    settings = torch.tensor(
        [[1.4, 0, 1, -math.inf, 0.3], [1, 0, 0.9, -math.inf, 0.5], [1, 40, 0.8, -math.inf, 0.7], [0.5, 0, 1, math.log(0.1), 0.9]],
        dtype=torch.float64, device=weight.device,
    ).repeat(8, 1)  # fmt: skip

    beside = (None, None, None, None, None, 0, 1)
    blocks = torch.randint(0, 256, (200, 4 * 144), dtype=torch.uint8, device=weight.device)  # of Q4_K
    blocks.view(torch.int16).view(200, 4, 72)[..., :2] = 0x2800  # their two factors: 2^-5

    return {
        "packed_linear": lambda: ops.packed_linear(one, blocks, *beside, "q4_k", 1024, None),
        "packed_linear, 4 rows": lambda: ops.packed_linear(many[:4], blocks, *beside, "q4_k", 1024, bias[:200]),
        "packed_linear, 16 rows": lambda: ops.packed_linear(many, blocks, *beside, "q4_k", 1024, bias[:200]),
        "packed_linear, 40 rows": lambda: ops.packed_linear(many.repeat(3, 1)[:40], blocks, *beside, "q4_k", 1024, None),
        "sample": lambda: ops.sample(logits, settings),
        "sample, odd": lambda: ops.sample(logits[:, 1:], settings),
        "linear": lambda: ops.linear(one, weight, None),
        "linear, 5 rows": lambda: ops.linear(five, weight, bias),
        "linear, 16 rows": lambda: ops.linear(many, weight, bias),
        "largest_": lambda: largest(one),
        "largest_, 16 rows, odd": lambda: largest(many[:, 1:]),
        "largest_, said": lambda: largest_said(many),
        "linear_bwd": lambda: ops.linear_bwd(dy, five, weight, True),
    }


def large(ops, x, random):
    # Nine rows, the last token of each of nine texts: the ninth is 2^31 numbers behind the first. So wide that they are read
    # where they lie, and not from shared memory.
    weight = random(64, 4096)
    last_tokens = x.view(-1).as_strided((9, 4096), ((1 << 28) + 8, 1))
    return {"linear": (last_tokens, lambda t: ops.linear(t, weight, None))}
