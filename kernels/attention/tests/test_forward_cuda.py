"""Attention forward on a GPU against float64, in the order from small to large.

    test_forward_cuda.py --library attention.so [--quick]

The rule: the largest error is at most twice that of plain attention in the inputs' own type (its scores, softmax and
product each rounded), both against the same formula in float64, plus 1e-5 where plain attention happens to be exact.
lse is float32 from sums of a few thousand exponentials of 2e-7 relative error each: 1e-4 absolute is 10 times that.
Outputs hold NaN before each call, so that what is not written is found. Skips (exit code 77) without an sm_90 GPU.
"""

import argparse
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from forward_c import NO_LIMIT, Library  # noqa: E402

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


def cases(quick):
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


def tensor(case, rows, heads, dim, generator):
    shape = {
        "rows": (case.batch, rows, heads, dim),
        "heads": (case.batch, heads, rows, dim),
        "cut": (case.batch, rows + 9, heads + 1, dim + 8),
    }[case.layout]
    t = torch.randn(shape, generator=generator, device="cuda").to(case.dtype)
    if case.layout == "heads":
        return t.transpose(1, 2)
    if case.layout == "rows":
        return t
    poisoned = torch.full_like(t, torch.nan)  # around the slice: nothing of it may be read
    inside = poisoned[:, 3 : 3 + rows, 1:, 8:]
    return inside.copy_(t[:, 3 : 3 + rows, 1:, 8:])


def plain(q, k, v, case, sinks, dtype):
    """Attention as it is written in a book, every step rounded to dtype: out, lse (of float64 only)."""
    group = case.heads // case.key_heads
    q, k, v = (t.to(dtype).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    x = (q @ k.transpose(2, 3)) * case.dim**-0.5
    if case.softcap > 0:
        x = torch.tanh(x / case.softcap) * case.softcap
    at = torch.arange(case.rows, device="cuda")[:, None] + case.keys - case.rows
    key = torch.arange(case.keys, device="cuda")[None]
    left, right = case.window
    seen = torch.ones(case.rows, case.keys, dtype=torch.bool, device="cuda")
    if left != NO_LIMIT:
        seen &= key >= at - left
    if right != NO_LIMIT:
        seen &= key <= at + right
    x = x.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        x = torch.cat([x, sinks.to(dtype)[None, :, None, None].expand(case.batch, -1, case.rows, 1)], 3)
    lse = torch.logsumexp(x, 3)
    p = torch.softmax(x, 3).nan_to_num(0.0)[..., : case.keys]
    return (p @ v).transpose(1, 2), lse


def check(library, case, generator):
    q = tensor(case, case.rows, case.heads, case.dim, generator)
    k = tensor(case, case.keys, case.key_heads, case.dim, generator)
    v = tensor(case, case.keys, case.key_heads, case.value_dim or case.dim, generator)
    sinks = torch.randn(case.heads, generator=generator, device="cuda") * 2 if case.sinks else None
    out = torch.full((case.batch, case.rows, case.heads, v.shape[3]), torch.nan, dtype=case.dtype, device="cuda")
    lse = torch.full((case.batch, case.heads, case.rows), torch.nan, device="cuda")
    options = dict(window=case.window, softcap=case.softcap, sinks=sinks)
    library.forward(q, k, v, out=out, lse=lse, **options)
    again = library.forward(q, k, v, **options)
    torch.cuda.synchronize()
    if case.rows == 0:
        return 0.0, 0.0
    want, want_lse = plain(q, k, v, case, sinks, torch.float64)
    near, _ = plain(q, k, v, case, sinks, case.dtype)
    error, allowed = (out.double() - want).abs().max().item(), 2 * (near.double() - want).abs().max().item() + 1e-5
    finite = want_lse.isfinite()
    lse_error = (lse - want_lse)[finite].abs().max().item() if finite.any() else 0.0
    # tanh.approx is good to 2^-11 of a score's cap.
    lse_allowed = 1e-4 if case.softcap == 0 else 2**-10 * case.softcap
    if not error <= allowed:
        raise AssertionError(f"{case}: wanted an error of at most {allowed:.2e} in out; got {error:.2e}")
    if not (lse_error <= lse_allowed and torch.equal(lse.isneginf(), want_lse.isneginf())):
        raise AssertionError(f"{case}: wanted an error of at most {lse_allowed:.1e} in lse; got {lse_error:.2e}")
    if not torch.equal(out, again):
        raise AssertionError(f"{case}: wanted the same bits from a second call; got others")
    return error / allowed, lse_error


def check_not_a_number(library, generator):
    """A NaN in a query is its row's alone; one in a value is everybody's who sees it."""
    q, k, v = (torch.randn(1, 300, 2, 128, generator=generator, device="cuda").bfloat16() for _ in range(3))
    q[0, 17, 1, 5] = torch.nan
    v[0, 200, 0, 3] = torch.nan
    bad = library.forward(q, k, v, window=CAUSAL).isnan()
    want = torch.zeros_like(bad)
    want[0, 17, 1] = True
    want[0, 200:, 0, 3] = True
    # Rows of the same tile multiply a value that they do not see by 0: NaN there is allowed.
    want[0, 128:200, 0, 3] = bad[0, 128:200, 0, 3]
    if not torch.equal(bad, want):
        raise AssertionError("wanted NaN in the row of its query and in rows that see its value alone; got others too")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print("skipped: no GPU of compute capability 9.0")
        return 77
    library, generator = Library(args.library), torch.Generator("cuda").manual_seed(args.seed)
    check_not_a_number(library, generator)
    failed, count, worst = 0, 0, 0.0
    for case in cases(args.quick):
        count += 1
        try:
            share, _ = check(library, case, generator)
            worst = max(worst, share)
        except AssertionError as e:
            failed += 1
            if failed <= 12:
                print(f"FAILED {e}", flush=True)
    print(f"{count} cases, {failed} failed; the largest error is {worst:.2f} of what is allowed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
