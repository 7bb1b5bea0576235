"""Cases of attention, from small to large, their inputs, and the formula in plain torch: what the tests compare with."""

import itertools
from dataclasses import dataclass

import torch
from attention_c import NO_LIMIT

CAUSAL = (NO_LIMIT, 0)
FULL = (NO_LIMIT, NO_LIMIT)


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
    mixed = ((1, 1), (0, 0), (300, 300), (64, 64), (127, 200), (0, 5), (5, 0), (513, 129), (129, 513), (0, 0))
    used = ((100, 300, 300), (100, 300, 77), (64, 128, 0), (1, 500, 500), (200, 200, 128))
    for dim, window in itertools.product((64, 128), (FULL, CAUSAL, (60, 0), (100, 30))):
        yield Case(0, 0, dim=dim, window=window, packed=mixed, heads=6, key_heads=2)
        yield Case(0, 0, dim=dim, window=window, packed=used, sinks=True, behind=(70, 300))
        yield Case(0, 0, dim=dim, window=window, packed=mixed, layout="cut", softcap=20.0, dtype=torch.float16)
    yield Case(0, 0, packed=((300, 300),), window=CAUSAL)
    yield Case(0, 0, packed=((5, 0), (130, 0)), window=CAUSAL, sinks=True)
    yield Case(0, 0, packed=((0, 5), (0, 130)), window=CAUSAL)
    yield Case(0, 0, packed=((0, 0),), behind=(200, 150))
    yield Case(0, 0, packed=((3, 3),) * 1500, window=CAUSAL, dim=64)
    if not quick:
        lengths = tuple((n, n) for n in (1023, 4096, 17, 2048, 333, 1, 700, 128))
        for dim in (64, 128):
            yield Case(0, 0, dim=dim, packed=lengths, window=CAUSAL, heads=8, key_heads=2)


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
        options = dict(window=case.window, softcap=case.softcap, sinks=sinks)
        if case.packed:
            def ints(numbers):
                return torch.tensor(list(numbers), dtype=torch.int32, device="cuda")

            options["starts"] = tuple(
                ints(itertools.accumulate((s[i] for s in case.packed), initial=0)) for i in (0, 1)
            )
            options["used"] = ints(s[2] for s in case.packed) if len(case.packed[0]) > 2 else None
        return Inputs(q, k, v, options)


def dense(q, k, v, case, sinks):
    """Attention as it is written in a book, [batch, rows, heads, dim], every step in the inputs' type: out, lse."""
    rows, keys = q.shape[1], k.shape[1]
    group = case.heads // case.key_heads
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    x = (q @ k.transpose(2, 3)) * case.dim**-0.5
    if case.softcap > 0:
        x = torch.tanh(x / case.softcap) * case.softcap
    at = torch.arange(rows, device="cuda")[:, None] + keys - rows
    key = torch.arange(keys, device="cuda")[None]
    left, right = case.window
    seen = torch.ones(rows, keys, dtype=torch.bool, device="cuda")
    if left != NO_LIMIT:
        seen &= key >= at - left
    if right != NO_LIMIT:
        seen &= key <= at + right
    x = x.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        x = torch.cat([x, sinks.to(x.dtype)[None, :, None, None].expand(q.shape[0], -1, rows, 1)], 3)
    # A row that sees nothing: its softmax, NaN, and that one's gradient, are kept out of what comes after.
    nothing = x.isneginf().all(3, keepdim=True)
    finite = x.masked_fill(nothing, 0.0)
    p = torch.softmax(finite, 3).masked_fill(nothing, 0.0)[..., :keys]
    lse = torch.logsumexp(finite, 3).masked_fill(nothing[..., 0], -torch.inf) if x.shape[3] else x.new_full(x.shape[:3], -torch.inf)
    return (p @ v).transpose(1, 2), lse


def plain(q, k, v, case, sinks):
    """The same of packed sequences, too."""
    if not case.packed:
        return dense(q, k, v, case, sinks)
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype, device="cuda")
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=q.dtype, device="cuda")
    row = key = 0
    outs, lses = [], []
    for sequence in case.packed:
        rows, keys, used = sequence if len(sequence) > 2 else (*sequence, sequence[1])
        one = dense(q[None, row : row + rows], k[None, key : key + used], v[None, key : key + used], case, sinks)
        outs.append(one[0][0]), lses.append(one[1][0])
        row, key = row + rows, key + keys
    outs.append(out[row:]), lses.append(lse[:, row:])
    return torch.cat(outs), torch.cat(lses, 1)
