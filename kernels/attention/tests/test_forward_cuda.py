"""Attention forward on a GPU against float64, in the order from small to large.

    test_forward_cuda.py --library attention.so [--quick]

The rule: the largest error is at most twice that of plain attention in the inputs' own type (its scores, softmax and
product each rounded), both against the same formula in float64, plus 1e-5 where plain attention happens to be exact.
lse is float32 from sums of a few thousand exponentials of 2e-7 relative error each: 1e-4 absolute is 10 times that.
Outputs hold NaN before each call, so that what is not written is found. Each case comes again from a captured graph, with the
same bits. Skips (exit code 77) without an sm_90 GPU.
"""

import argparse
import itertools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from attention_c import Library, captured  # noqa: E402
from attention_cases import CAUSAL, Inputs, dense_cases, many_cases, mma_cases, packed_cases, plain, wide_cases  # noqa: E402


def check(library, case, generator):
    x = Inputs.of(case, generator)
    out = torch.full((*x.q.shape[:-1], case.value_dim), torch.nan, dtype=case.dtype, device="cuda")
    lead = () if case.packed else (case.batch,)
    lse = torch.full((*lead, case.heads, case.rows), torch.nan, device="cuda")
    library.forward(x.q, x.k, x.v, out=out, lse=lse, **x.options)
    again = library.forward(x.q, x.k, x.v, **x.options)
    replayed = [torch.full_like(t, torch.nan) for t in (out, lse)]
    captured(lambda: library.forward(x.q, x.k, x.v, out=replayed[0], lse=replayed[1], **x.options))
    torch.cuda.synchronize()
    if case.rows == 0:
        return 0.0
    sinks = x.options["sinks"]
    slopes = x.options["slopes"]
    want, want_lse = plain(x.q.double(), x.k.double(), x.v.double(), case, sinks, slopes)
    near, _ = plain(x.q, x.k, x.v, case, sinks, slopes)
    error, allowed = (out.double() - want).abs().max().item(), 2 * (near.double() - want).abs().max().item() + 1e-5
    finite = want_lse.isfinite()
    lse_error = (lse - want_lse)[finite].abs().max().item() if finite.any() else 0.0
    # tanh.approx is good to 2^-11 of a score's cap.
    lse_allowed = 1e-4 if case.softcap == 0 else 2**-10 * case.softcap
    if not error <= allowed:
        raise AssertionError(f"{case}: expected an error of at most {allowed:.2e} in out; got {error:.2e}")
    if not (lse_error <= lse_allowed and torch.equal(lse.isneginf(), want_lse.isneginf())):
        raise AssertionError(f"{case}: expected an error of at most {lse_allowed:.1e} in lse; got {lse_error:.2e}")
    if not torch.equal(out, again):
        raise AssertionError(f"{case}: expected the same bits from a second call; got others")
    if not (torch.equal(out, replayed[0]) and torch.equal(lse, replayed[1])):
        raise AssertionError(f"{case}: expected the same bits from a captured graph; got others")
    return error / allowed


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
        raise AssertionError("expected NaN in the row of its query and in rows that see its value alone; got others too")


def run(check, all_cases, library, generator):
    """check() of each case: its error as a share of what is allowed. The program's exit code."""
    failed, count, worst = 0, 0, 0.0
    for case in all_cases:
        count += 1
        try:
            worst = max(worst, check(library, case, generator))
        except AssertionError as e:
            failed += 1
            if failed <= 12:
                print(f"FAILED {e}", flush=True)
    print(f"{count} cases, {failed} failed; the largest error is {worst:.2f} of what is allowed", flush=True)
    return 1 if failed else 0


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dense", action="store_true", help="only heads of up to 128 elements, of sequences that are not packed")
    parser.add_argument("--wide", action="store_true", help="only heads of more than 128 elements, of the sm_90a kernels")
    parser.add_argument("--mma", action="store_true", help="only what goes to the kernels of every GPU")
    parser.add_argument("--many", action="store_true", help="only many heads")
    parser.add_argument("--large", action="store_true", help="backward: also tensors beyond 2^31 elements (40 GB of GPU memory)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print("skipped: no GPU of compute capability 9.0")
        sys.exit(77)
    parts = {"dense": dense_cases, "packed": packed_cases, "wide": wide_cases, "mma": mma_cases, "many": many_cases}
    wanted = [name for name in ("dense", "wide", "mma", "many") if getattr(args, name)] or parts
    cases = itertools.chain(*(parts[name](args.quick) for name in wanted))
    return Library(args.library), torch.Generator("cuda").manual_seed(args.seed), cases, args


def main():
    library, generator, cases, _ = arguments()
    check_not_a_number(library, generator)
    return run(check, cases, library, generator)


if __name__ == "__main__":
    sys.exit(main())
