"""Attention over caches of keys on a GPU against float64, in the order from small to large.

    test_decode_cuda.py --library attention.so [--quick]

The rule is that of test_forward_cuda.py. What may not be read holds NaN: behind each sequence's length, in pages of
nobody, in outputs before each call; block tables hold -1 behind a sequence's last page.
"""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from attention_cases import CAUSAL, FULL, Case, dense  # noqa: E402
from test_forward_cuda import arguments, run  # noqa: E402

LENGTHS = (-1, 0, 1, 15, 16, 17, 300, 777)


@dataclass
class Decode:
    lengths: tuple = LENGTHS
    rows: int = 1
    heads: int = 4
    key_heads: int = 2
    dim: int = 128
    value_dim: int = 0
    window: tuple = CAUSAL
    softcap: float = 0.0
    sinks: bool = False
    chunk: int = 0
    alibi: bool = False
    dtype: torch.dtype = torch.bfloat16
    new: bool = True  # as many new keys as query rows
    page: int = 0  # rows of a page; 0: caches of a fixed size
    index: bool = False  # sequences in other caches than their own number
    one: bool = False  # values are the first numbers of the keys (latent attention)
    heads_first: bool = False  # the cache lies as [caches, key_heads, rows, dim]
    splits: int = 0
    loud: int = 1  # queries so many times as large: a row's largest score moves from keys to keys

    def __post_init__(self):
        self.value_dim = self.value_dim or self.dim


def decode_cases(quick):
    for dim, page, new in itertools.product((64, 128, 256), (0, 16, 64), (True, False)):
        yield Decode(dim=dim, page=page, new=new)
    for splits, rows, heads in itertools.product((0, 1, 3, 7), (1, 3, 9), (2, 14)):
        yield Decode(splits=splits, rows=rows, heads=heads, sinks=rows == 3, page=16 if heads == 14 else 0)
    for window, softcap in itertools.product(((50, 0), (0, 0), FULL, (20, 3)), (0.0, 20.0)):
        yield Decode(window=window, softcap=softcap, rows=5, sinks=True, splits=4)
    for dim, value_dim in ((8, 8), (80, 80), (96, 64), (192, 128), (64, 256)):
        yield Decode(dim=dim, value_dim=value_dim, dtype=torch.float16)
    for chunk, alibi in ((16, False), (100, True), (0, True)):
        yield Decode(chunk=chunk, alibi=alibi, rows=3, heads=14, sinks=True, page=16)
        yield Decode(chunk=chunk, alibi=alibi, window=FULL, splits=3, softcap=20.0)
    for dim, value_dim, one in ((576, 512, True), (576, 512, False), (512, 512, False), (320, 264, False), (264, 256, True)):
        for page, new in itertools.product((0, 16, 64), (True, False)):
            yield Decode(dim=dim, value_dim=value_dim, one=one, page=page, new=new, heads=16, key_heads=1)
        yield Decode(dim=dim, value_dim=value_dim, one=one, rows=3, heads=14, splits=3, dtype=torch.float16, softcap=20.0)
        yield Decode(dim=dim, value_dim=value_dim, one=one, window=(50, 0), chunk=30, alibi=True, sinks=True, heads=128,
                     key_heads=1)
    for heads, rows, page, splits in itertools.product((33, 64, 128), (1, 2), (0, 16), (0, 3)):  # many heads, latent
        yield Decode(dim=576, value_dim=512, one=True, heads=heads, key_heads=1, rows=rows, page=page, splits=splits)
    for dim, value_dim in ((576, 512), (320, 264), (264, 256)):
        yield Decode(dim=dim, value_dim=value_dim, one=True, heads=72, key_heads=1, rows=3, window=(70, 0), sinks=True,
                     softcap=20.0, dtype=torch.float16, new=False, splits=2)
        yield Decode(dim=dim, value_dim=value_dim, one=True, heads=160, key_heads=2, rows=2, alibi=True, page=64)
    long = (5000, 1, 130, 64, 65, 1000)
    for heads, page, splits in itertools.product((64, 128), (0, 64), (1, 2, 0)):
        yield Decode(long, dim=576, value_dim=512, one=True, heads=heads, key_heads=1, page=page, splits=splits, loud=8)
    for dim, splits in itertools.product((64, 128, 256), (1, 40, 0)):
        yield Decode(long, dim=dim, heads=16, key_heads=2, splits=splits, loud=8)
    yield Decode((20000,), dim=576, value_dim=512, one=True, heads=16, key_heads=1, loud=8)  # many parts
    yield Decode((20000,), dim=320, value_dim=264, one=True, heads=40, key_heads=1, splits=300)
    yield Decode(index=True)
    yield Decode(heads_first=True, rows=2)
    yield Decode(heads_first=True, page=32)
    if not quick:
        yield Decode(lengths=(40000, 1), heads=32, key_heads=8)
        yield Decode(lengths=(5000,) * 40, heads=32, key_heads=8, page=16)


def check(library, case, generator):
    batch, new_rows = len(case.lengths), case.rows if case.new else 0
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda")
    most = max(case.lengths) + new_rows

    def random(*shape):
        return torch.randn(shape, generator=generator, device="cuda").to(case.dtype)

    q = random(batch, case.rows, case.heads, case.dim) * case.loud
    keys, values = random(batch, most, case.key_heads, case.dim), random(batch, most, case.key_heads, case.value_dim)
    if case.one:
        values = keys[..., : case.value_dim]
    new = (None, None)
    if case.new:
        new = random(batch, new_rows, case.key_heads, case.dim), random(batch, new_rows, case.key_heads, case.value_dim)
        if case.one:
            new = new[0], new[0][..., : case.value_dim]
    table = index = None
    if case.page:
        pages = -(-most // case.page)
        order = torch.randperm(batch * pages + 5, generator=generator, device="cuda").to(torch.int32)
        table = order[: batch * pages].view(batch, pages)
        room, rows = batch * pages + 5, case.page
        needed = torch.where(lengths < 0, 0, -(-(lengths + new_rows) // case.page))
        table = torch.where(torch.arange(pages, device="cuda") < needed[:, None], table, -1)
    else:
        room, rows = batch + 2, most
        index = torch.randperm(room, generator=generator, device="cuda").to(torch.int32)[:batch] if case.index else None

    def cache(full):
        """The cache, NaN where nothing is; with_new: what it must be afterwards."""
        shape = (room, case.key_heads, rows, full.shape[3]) if case.heads_first else (room, rows, *full.shape[2:])
        t = torch.full(shape, torch.nan, dtype=case.dtype, device="cuda")
        return t.transpose(1, 2) if case.heads_first else t

    def put(t, b, first, rows_of):
        for j in range(rows_of.shape[0]):
            at = first + j
            if case.page:
                t[table[b, at // case.page], at % case.page] = rows_of[j]
            else:
                t[index[b] if index is not None else b, at] = rows_of[j]

    caches = [cache(keys)]
    caches.append(caches[0][..., : case.value_dim] if case.one else cache(values))
    for b, length in enumerate(case.lengths):
        for t, full in zip(caches, (keys, values)):
            if length > 0 and not case.page:
                t[index[b] if index is not None else b, :length] = full[b, :length]
            elif length > 0:
                at = torch.arange(length, device="cuda")
                t[table[b][at // case.page].long(), at % case.page] = full[b, :length]
    wanted = [t.clone() for t in caches]
    sinks = torch.randn(case.heads, generator=generator, device="cuda") * 2 if case.sinks else None
    out = torch.full((batch, case.rows, case.heads, case.value_dim), torch.nan, dtype=case.dtype, device="cuda")
    lse = torch.full((batch, case.heads, case.rows), torch.nan, device="cuda")
    slopes = torch.rand(case.heads, generator=generator, device="cuda") * 0.1 if case.alibi else None
    options = dict(chunk=case.chunk, slopes=slopes, window=case.window, softcap=case.softcap, sinks=sinks, table=table, index=index, splits=case.splits)
    library.space.fill_(255)
    library.decode(q, *caches, lengths, key_rows=most, new=new, out=out, lse=lse, **options)
    again = library.decode(q, *caches, lengths, key_rows=most, new=new, **options)
    torch.cuda.synchronize()
    worst = 0.0
    for b, length in enumerate(case.lengths):
        total = max(0, length + new_rows) if length >= 0 else 0
        full = []
        for t, fresh, have in zip(wanted, new, (keys, values)):
            known = have[b, : max(0, length)]
            added = fresh[b] if case.new and length >= 0 else known[:0]
            put(t, b, length, added)
            full.append(torch.cat([known, added])[None])
        shape = Case(case.rows, total, dim=case.dim, heads=case.heads, key_heads=case.key_heads, window=case.window,
                     softcap=case.softcap, chunk=case.chunk)
        want, want_lse = dense(q[b : b + 1].double(), full[0].double(), full[1].double(), shape, sinks, slopes)
        near, _ = dense(q[b : b + 1], *full, shape, sinks, slopes)
        error = (out[b].double() - want[0]).abs().max().item()
        allowed = 2 * (near.double() - want).abs().max().item() + 1e-5
        if not error <= allowed:
            raise AssertionError(f"{case}, length {length}: expected an error of at most {allowed:.2e}; got {error:.2e}")
        finite = want_lse.isfinite()
        lse_error = (lse[b : b + 1] - want_lse)[finite].abs().max().item() if finite.any() else 0.0
        if not lse_error <= (1e-4 if case.softcap == 0 else 2**-10 * case.softcap):
            raise AssertionError(f"{case}, length {length}: expected lse; got an error of {lse_error:.2e}")
        if not torch.equal(lse[b : b + 1].isneginf(), want_lse.isneginf()):
            raise AssertionError(f"{case}, length {length}: expected lse of -infinity in other rows")
        worst = max(worst, error / allowed)
    for name, got, want in zip(("keys", "values"), caches, wanted):
        if not torch.equal(got.nan_to_num(12345.0), want.nan_to_num(12345.0)):
            raise AssertionError(f"{case}: expected the new {name} in the cache and nothing else changed; got otherwise")
    if not torch.equal(out, again):
        raise AssertionError(f"{case}: expected the same bits from a second call; got others")
    return worst


@dataclass
class Chain:
    """Calls right behind one another, of which each reads what the one before has written: its rows of the cache and,
    where sizes allow it, its output as queries."""

    dim: int
    heads: int
    batch: int
    length: int
    page: int = 0
    index: bool = False
    calls: int = 12

    @property
    def one(self):
        return self.dim == 576


CHAINS = (
    Chain(128, 8, 16, 1000), Chain(256, 16, 16, 2000), Chain(256, 16, 16, 2000, page=64), Chain(256, 16, 3, 700, index=True),
    Chain(576, 16, 1, 20000), Chain(576, 16, 16, 1500), Chain(576, 16, 64, 300, page=16), Chain(576, 64, 64, 500),
    Chain(576, 64, 64, 500, page=64), Chain(576, 128, 2, 4000, page=64),
)  # fmt: skip


def check_chain(library, case, generator):
    """What a launch fetches before the one before has ended must not be what it computes with."""
    rows, room = -(-(case.length + case.calls) // 64) * 64, case.batch + 3 * case.index

    def random(*shape):
        return torch.randn(shape, generator=generator, device="cuda").bfloat16()

    first = random(case.batch, 1, case.heads, case.dim)
    kept = [random(room, rows, 1, case.dim) for _ in range(1 if case.one else 2)]
    new = [[random(case.batch, 1, 1, case.dim) * 3 for _ in kept] for _ in range(case.calls)]
    lengths = [torch.full((case.batch,), case.length + i, dtype=torch.int32, device="cuda") for i in range(case.calls)]
    order = torch.randperm(room * (rows // case.page if case.page else 1), generator=generator, device="cuda").to(torch.int32)
    table = order.view(case.batch, -1) if case.page else None
    index = order[: case.batch] if case.index else None
    caches, size = [t.clone() for t in kept], 512 if case.one else case.dim
    outs = [torch.empty_like(first[..., :size]) for _ in range(case.calls)]

    def both(tensors):
        return (tensors[0], tensors[0][..., :512]) if case.one else tensors

    def run_all(wait):
        q = first
        for out, fresh, length in zip(outs, new, lengths):
            paged = [t.view(-1, case.page, 1, case.dim) if case.page else t for t in caches]
            library.decode(q, *both(paged), length, key_rows=rows, new=both(fresh), table=table, index=index, window=CAUSAL, out=out)
            q = q if case.one else out
            if wait:
                torch.cuda.synchronize()

    def found(call):
        for t, full in zip(caches, kept):
            t.copy_(full)
        for out in outs:
            out.fill_(7)
        torch.cuda.synchronize()
        call()
        torch.cuda.synchronize()
        return [t.clone() for t in (*outs, *caches)]

    want, graph = found(lambda: run_all(True)), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_all(False)
    for how, call in ((("eager", lambda: run_all(False)), ("captured", graph.replay)) * 5):
        for i, (got, wanted) in enumerate(zip(found(call), want)):
            if not torch.equal(got, wanted):
                raise AssertionError(f"{case}, {how}: expected the bits of calls that wait for each other; got others in tensor {i}")
    return 0.0


if __name__ == "__main__":
    library, generator, _, args = arguments()
    checks = {Decode: check, Chain: check_chain}
    cases = itertools.chain(decode_cases(args.quick), CHAINS)
    sys.exit(run(lambda library, case, generator: checks[type(case)](library, case, generator), cases, library, generator))
