"""Cases of attention, from small to large, their inputs, and the formula in plain torch: what the tests compare with."""

import itertools
from dataclasses import dataclass

import torch
from attention_c import NO_LIMIT

CAUSAL = (NO_LIMIT, 0)
FULL = (NO_LIMIT, NO_LIMIT)

# Packed sequences: (query rows, keys), and of the keys those that are used.
MIXED = ((1, 1), (0, 0), (300, 300), (64, 64), (127, 200), (0, 5), (5, 0), (513, 129), (129, 513), (0, 0))
USED = ((100, 300, 300), (100, 300, 77), (64, 128, 0), (1, 500, 500), (200, 200, 128))


@dataclass
class Case:
    rows: int
    keys: int
    dim: int = 128
    value_dim: int = 0
    batch: int = 1
    heads: int = 2
    key_heads: int = 2
    window: tuple = FULL
    softcap: float = 0.0
    sinks: bool = False
    chunk: int = 0
    alibi: str = ""  # or heads, sequences: a slope for each, or for each head of each sequence
    dtype: torch.dtype = torch.bfloat16
    layout: str = "rows"  # or heads: transposed views of [batch, heads, rows, dim]; cut: slices of something larger
    packed: tuple = ()  # (query rows, keys) or (query rows, keys, keys that are used) of each sequence
    behind: tuple = (0, 0)  # query rows and keys behind the last sequence

    def __post_init__(self):
        self.value_dim = self.value_dim or self.dim
        if self.packed:
            self.rows, self.keys = (sum(s[i] for s in self.packed) + self.behind[i] for i in (0, 1))


def dense_cases(quick):
    yield Case(64, 64)
    yield Case(128, 128)
    for rows, keys, dim, window in itertools.product(
        (1, 127, 128, 300), (1, 128, 129, 517), (64, 128), (FULL, CAUSAL)
    ):
        yield Case(rows, keys, dim=dim, window=window, heads=3, key_heads=3)
    for dtype, dim, window in itertools.product((torch.bfloat16, torch.float16), (64, 128), (FULL, CAUSAL)):
        yield Case(515, 1027, dim=dim, window=window, dtype=dtype, batch=2, heads=6, key_heads=2)
        yield Case(1024, 1024, dim=dim, window=window, dtype=dtype, softcap=30.0, heads=4, key_heads=1)
        yield Case(257, 511, dim=dim, window=window, dtype=dtype, sinks=True)
    for window, dim in itertools.product(((0, 0), (7, 0), (128, 0), (200, 100), (5, NO_LIMIT), (3000, 0)), (64, 128)):
        yield Case(700, 700, dim=dim, window=window)
        yield Case(333, 700, dim=dim, window=window, sinks=True, heads=5, key_heads=5)
        yield Case(700, 333, dim=dim, window=window, softcap=20.0)
    for dim, value_dim in ((8, 8), (32, 32), (80, 80), (96, 96), (112, 112), (128, 64), (64, 128), (40, 24)):
        yield Case(300, 300, dim=dim, value_dim=value_dim, window=CAUSAL)
    for layout, dim in itertools.product(("heads", "cut"), (64, 128)):
        yield Case(333, 517, dim=dim, layout=layout, batch=3, heads=4, key_heads=2, window=CAUSAL)
    for window in (FULL, CAUSAL):
        yield Case(5, 0, window=window)
        yield Case(0, 5, window=window)
        yield Case(300, 7, window=window, sinks=True)
    if not quick:
        for dim, window, heads, dtype in itertools.product(
            (64, 128), (FULL, CAUSAL), (1, 7, 132), (torch.bfloat16, torch.float16)
        ):
            yield Case(2048, 2048, dim=dim, window=window, heads=heads, key_heads=1, dtype=dtype)
        yield Case(16384, 16384, window=CAUSAL, heads=1, key_heads=1)
        yield Case(1, 16384, window=CAUSAL, heads=32, key_heads=8, batch=3)


def packed_cases(quick):
    for dim, window in itertools.product((64, 128), (FULL, CAUSAL, (60, 0), (100, 30))):
        yield Case(0, 0, dim=dim, window=window, packed=MIXED, heads=6, key_heads=2)
        yield Case(0, 0, dim=dim, window=window, packed=USED, sinks=True, behind=(70, 300))
        yield Case(0, 0, dim=dim, window=window, packed=MIXED, layout="cut", softcap=20.0, dtype=torch.float16)
    yield Case(0, 0, packed=((300, 300),), window=CAUSAL)
    yield Case(0, 0, packed=((5, 0), (130, 0)), window=CAUSAL, sinks=True)
    yield Case(0, 0, packed=((0, 5), (0, 130)), window=CAUSAL)
    yield Case(0, 0, packed=((0, 0),), behind=(200, 150))
    yield Case(0, 0, packed=((3, 3),) * 1500, window=CAUSAL, dim=64)
    if not quick:
        lengths = tuple((n, n) for n in (1023, 4096, 17, 2048, 333, 1, 700, 128))
        for dim in (64, 128):
            yield Case(0, 0, dim=dim, packed=lengths, window=CAUSAL, heads=8, key_heads=2)


def wide_cases(quick):
    """Heads of more than 128 numbers that the sm_90a kernels take."""
    sizes = ((160, 160), (192, 128), (200, 200), (256, 256), (256, 64), (64, 256))
    for (dim, value_dim), window in itertools.product(((192, 128), (256, 256)), (FULL, CAUSAL)):
        for rows, keys in ((64, 64), (128, 128), (1, 1), (1, 517), (127, 33), (300, 129), (517, 1027), (5, 0), (0, 5)):
            yield Case(rows, keys, dim=dim, value_dim=value_dim, window=window, heads=3, key_heads=3)
    for (dim, value_dim), window in itertools.product(sizes, (FULL, CAUSAL, (40, 20))):
        yield Case(200, 333, dim=dim, value_dim=value_dim, window=window, heads=6, key_heads=2, dtype=torch.float16)
        yield Case(150, 150, dim=dim, value_dim=value_dim, window=window, batch=2, softcap=20.0, sinks=True, layout="cut")
    for (dim, value_dim), window in itertools.product(((192, 128), (256, 256)), (FULL, CAUSAL, (60, 0), (100, 30))):
        same = dict(dim=dim, value_dim=value_dim, window=window)
        yield Case(700, 333, layout="heads", heads=6, **same)
        yield Case(0, 0, packed=MIXED, heads=6, key_heads=2, **same)
        yield Case(0, 0, packed=USED, sinks=True, behind=(70, 300), **same)
        yield Case(0, 0, packed=MIXED, layout="cut", softcap=20.0, dtype=torch.float16, **same)
    if not quick:
        for dim, value_dim in ((192, 128), (256, 256)):
            yield Case(2048, 2048, dim=dim, value_dim=value_dim, window=CAUSAL, heads=7, key_heads=1)
            yield Case(4096, 4096, dim=dim, value_dim=value_dim, window=CAUSAL, heads=1, key_heads=1)


def mma_cases(quick):
    """What goes to the kernels of every GPU from sm_80 on: heads of more than 256 elements, chunks, ALiBi."""
    for window in (FULL, CAUSAL):
        for rows, keys in ((64, 64), (1, 1), (1, 517), (127, 33), (300, 129)):
            yield Case(rows, keys, dim=512, window=window, heads=3, key_heads=3)
    for (dim, value_dim), window in itertools.product(((512, 512), (320, 40), (24, 504)), (FULL, CAUSAL, (40, 20))):
        yield Case(200, 333, dim=dim, value_dim=value_dim, window=window, heads=6, key_heads=2, dtype=torch.float16)
        yield Case(150, 150, dim=dim, value_dim=value_dim, window=window, batch=2, softcap=20.0, sinks=True, layout="cut")
    for dim, (window, chunk), alibi in itertools.product(
        (64, 128, 256), ((CAUSAL, 0), (CAUSAL, 50), (FULL, 64), ((70, 9), 100), ((1, 0), 7)), ("", "heads", "sequences")
    ):
        if chunk or alibi:
            yield Case(333, 517, dim=dim, window=window, chunk=chunk, alibi=alibi, batch=2, heads=4, key_heads=2)
            yield Case(300, 77, dim=dim, window=window, chunk=chunk, alibi=alibi, sinks=True, softcap=10.0)
    for dim, value_dim in ((64, 64), (128, 128), (192, 128), (256, 256), (512, 512)):
        for window, chunk, alibi in ((CAUSAL, 90, ""), ((60, 0), 0, "sequences"), (FULL, 33, "heads")):
            yield Case(0, 0, dim=dim, value_dim=value_dim, window=window, chunk=chunk, alibi=alibi, packed=MIXED, heads=6,
                       key_heads=2)
            yield Case(0, 0, dim=dim, value_dim=value_dim, window=window, chunk=chunk, alibi=alibi, packed=USED,
                       sinks=True, behind=(70, 300))
    if not quick:
        yield Case(2048, 2048, dim=512, window=CAUSAL, heads=7, key_heads=1)


def many_cases(quick):
    """So many tiles of keys that blocks of the sm_90a backward zero sums for later ones (backward_zeros.cuh)."""
    sizes = ((64, 64), (128, 128), (192, 128), (256, 256))
    for (dim, value_dim), window in itertools.product(sizes, (FULL, CAUSAL, (60, 0))):
        same = dict(dim=dim, value_dim=value_dim, window=window)
        yield Case(300, 300, batch=8, heads=64, key_heads=64, **same)
        yield Case(200, 333, batch=16, heads=64, key_heads=32, layout="cut", **same)
        yield Case(0, 0, packed=MIXED, heads=96, key_heads=96, **same)
        yield Case(0, 0, packed=USED, heads=128, key_heads=64, sinks=True, behind=(70, 300), **same)


def tensor(case, rows, heads, dim, generator):
    """Normal numbers, [batch, rows, heads, dim] or [rows, heads, dim]; what lies around a slice is NaN."""
    lead = () if case.packed else (case.batch,)
    shape = {
        "rows": (*lead, rows, heads, dim),
        "heads": (*lead, heads, rows, dim),
        "cut": (*lead, rows + 9, heads + 1, dim + 8),
    }[case.layout]
    t = torch.randn(shape, generator=generator, device="cuda").to(case.dtype)
    if case.layout == "heads":
        return t.transpose(-3, -2)
    if case.layout == "rows":
        return t
    poisoned = torch.full_like(t, torch.nan)
    inside = poisoned[..., 3 : 3 + rows, 1:, 8:]
    return inside.copy_(t[..., 3 : 3 + rows, 1:, 8:])


@dataclass
class Inputs:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    options: dict  # of Library's functions

    @staticmethod
    def of(case, generator):
        q = tensor(case, case.rows, case.heads, case.dim, generator)
        k = tensor(case, case.keys, case.key_heads, case.dim, generator)
        v = tensor(case, case.keys, case.key_heads, case.value_dim, generator)
        sinks = torch.randn(case.heads, generator=generator, device="cuda") * 2 if case.sinks else None
        sequences = len(case.packed) if case.packed else case.batch
        slopes = {"": None, "heads": (case.heads,), "sequences": (sequences, case.heads)}[case.alibi]
        if slopes is not None:
            slopes = torch.rand(slopes, generator=generator, device="cuda") * 0.1
        options = dict(window=case.window, softcap=case.softcap, sinks=sinks, chunk=case.chunk, slopes=slopes)
        if case.packed:
            def ints(numbers):
                return torch.tensor(list(numbers), dtype=torch.int32, device="cuda")

            options["starts"] = tuple(
                ints(itertools.accumulate((s[i] for s in case.packed), initial=0)) for i in (0, 1)
            )
            options["used"] = ints(s[2] for s in case.packed) if len(case.packed[0]) > 2 else None
        return Inputs(q, k, v, options)


def dense(q, k, v, case, sinks, slopes=None):
    """Attention as it is written in a book, [batch, rows, heads, dim], every step in the inputs' type: out, lse.
    slopes: [heads] or [batch, heads]."""
    rows, keys = q.shape[1], k.shape[1]
    group = case.heads // case.key_heads
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    x = (q @ k.transpose(2, 3)) * case.dim**-0.5
    if case.softcap > 0:
        x = torch.tanh(x / case.softcap) * case.softcap
    at = torch.arange(rows, device="cuda")[:, None] + keys - rows
    key = torch.arange(keys, device="cuda")[None]
    if slopes is not None:  # in float32: rounded to 16 bits, a distance of hundreds would hide every error
        wide = torch.promote_types(x.dtype, torch.float32)
        x = x.to(wide) - slopes.to(wide)[..., None, None] * (at - key).abs()
    left, right = case.window
    seen = torch.ones(rows, keys, dtype=torch.bool, device="cuda")
    if left != NO_LIMIT:
        seen &= key >= at - left
    if right != NO_LIMIT:
        seen &= key <= at + right
    if case.chunk:
        seen &= key // case.chunk == torch.div(at, case.chunk, rounding_mode="floor")
    x = x.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        x = torch.cat([x, sinks.to(x.dtype)[None, :, None, None].expand(q.shape[0], -1, rows, 1)], 3)
    # A row that sees nothing: its softmax, NaN, and that one's gradient, are kept out of what comes after.
    nothing = x.isneginf().all(3, keepdim=True)
    finite = x.masked_fill(nothing, 0.0)
    p = torch.softmax(finite, 3).masked_fill(nothing, 0.0)[..., :keys]
    lse = torch.logsumexp(finite, 3).masked_fill(nothing[..., 0], -torch.inf) if x.shape[3] else x.new_full(x.shape[:3], -torch.inf)
    return (p.to(v.dtype) @ v).transpose(1, 2), lse


def plain(q, k, v, case, sinks, slopes=None):
    """The same of packed sequences, too."""
    if not case.packed:
        return dense(q, k, v, case, sinks, slopes)
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype, device="cuda")
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=q.dtype, device="cuda")
    row = key = 0
    outs, lses = [], []
    for number, sequence in enumerate(case.packed):
        rows, keys, used = sequence if len(sequence) > 2 else (*sequence, sequence[1])
        its = slopes[number] if slopes is not None and slopes.dim() == 2 else slopes
        one = dense(q[None, row : row + rows], k[None, key : key + used], v[None, key : key + used], case, sinks, its)
        outs.append(one[0][0]), lses.append(one[1][0])
        row, key = row + rows, key + keys
    outs.append(out[row:]), lses.append(lse[:, row:])
    return torch.cat(outs), torch.cat(lses, 1)
