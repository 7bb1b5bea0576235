"""Attention backward on a GPU against float64 autograd, in the order from small to large.

    test_backward_cuda.py --library attention.so [--quick] [--large]

The rule is that of test_forward_cuda.py, for each gradient: at most twice the error of autograd through plain attention
in the inputs' own type (where there are few numbers that may be nothing by chance: two roundings of the largest one, of
dx and of the gradient, are always allowed), plus 1e-5, and with a softcap also the error of tanh.approx, 2^-10 of the
largest gradient.
dsinks sums over all rows, so that its plain error can be small by chance: allowed is also five standard deviations of
what the roundings of out come to in it. Gradients and workspace hold NaN before each call; one of two
deterministic calls comes from a captured graph.
"""

import itertools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from attention_c import captured  # noqa: E402
from attention_cases import CAUSAL, Case, Inputs, plain  # noqa: E402
from test_forward_cuda import arguments, run  # noqa: E402

NAMES = ("dq", "dk", "dv", "dsinks")


def reference(x, case, dout, dlse, dtype):
    """Gradients by autograd, and out and lse, computed in dtype."""
    leaves = [t.to(dtype).detach().requires_grad_() for t in (x.q, x.k, x.v)]
    if x.options["sinks"] is not None:
        leaves.append(x.options["sinks"].to(dtype).detach().requires_grad_())
    out, lse = plain(*leaves[:3], case, leaves[3] if len(leaves) > 3 else None, x.options["slopes"])
    total = (out * dout.to(dtype)).sum()
    if dlse is not None:
        total = total + (lse.masked_fill(lse.isneginf(), 0.0) * dlse.to(dtype)).sum()
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    grads = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves)]
    return grads, out.detach(), lse.detach()


def rounding_of_dsinks(x, dout, out, lse):
    """dsinks = -sum over rows of exp(sink - lse) dout . out. Each number of out is rounded for itself, with a standard
    deviation of a fifth of its last place or less."""
    weights = torch.exp(x.options["sinks"].double()[:, None] - lse).nan_to_num(posinf=0.0)  # of rows that see nothing
    terms = (dout.double() * out).square().sum(-1).transpose(-1, -2) * weights.square()  # [.., heads, rows]
    of_heads = terms.sum(-1) if terms.dim() == 2 else terms.sum((0, -1))
    return torch.finfo(dout.dtype).eps * of_heads.sqrt().max().item()


def compare(case, got, want, near, rounding):
    worst = 0.0
    for name, g, w, n in zip(NAMES, got, want, near):
        if w.numel() == 0:
            continue
        error = (g.double() - w).abs().max().item()
        two_roundings = torch.finfo(case.dtype).eps * w.abs().max().item()  # dx or p, and the gradient, by eps / 2 at most each
        allowed = max(2 * (n.double() - w).abs().max().item(), two_roundings) + 1e-5
        if case.softcap > 0:
            allowed += 2**-10 * w.abs().max().item()
        if name == "dsinks":
            allowed += rounding
        if not error <= allowed:
            raise AssertionError(f"{case}: expected an error of at most {allowed:.2e} in {name}; got {error:.2e}")
        worst = max(worst, error / allowed)
    return worst


def check(library, case, generator):
    x = Inputs.of(case, generator)
    dout = torch.randn(*x.q.shape[:-1], case.value_dim, generator=generator, device="cuda").to(case.dtype)
    lead = () if case.packed else (case.batch,)
    dlse = torch.randn(*lead, case.heads, case.rows, generator=generator, device="cuda") if case.heads % 3 == 0 else None
    sinks = x.options["sinks"]
    want, want_out, want_lse = reference(x, case, dout, dlse, torch.float64)
    near, _, _ = reference(x, case, dout, dlse, case.dtype)
    out, lse = want_out.to(case.dtype), want_lse.float().contiguous()

    def call(deterministic, run=lambda call: call()):
        gradients = [torch.full(t.shape, torch.nan, dtype=t.dtype, device="cuda") for t in (x.q, x.k, x.v)]
        gradients.append(torch.full_like(sinks, torch.nan) if case.sinks else None)
        library.space.fill_(255)
        options = dict(dlse=dlse, gradients=gradients, deterministic=deterministic, **x.options)
        run(lambda: library.backward(dout, x.q, x.k, x.v, out, lse, **options))
        return gradients[: 4 if case.sinks else 3]

    got, fixed, again = call(False), call(True), call(True, captured)
    rounding = rounding_of_dsinks(x, dout, want_out, want_lse) if case.sinks else 0.0
    worst = max(compare(case, g, want, near, rounding) for g in (got, fixed))
    for name, one, two in zip(NAMES, fixed, again):
        if not torch.equal(one, two):
            raise AssertionError(f"{case}: expected the same bits of {name} from a captured deterministic call; got others")
    for name, one, two in list(zip(NAMES, got, fixed))[1:]:
        if not torch.equal(one, two):
            raise AssertionError(f"{case}: expected the same bits of {name} in any case; got others")
    return worst


def check_captured(library, generator):
    """Forward and backward in a CUDA graph give what they give outside, and so with other inputs and lengths."""
    for case in (
        Case(333, 517, window=CAUSAL, sinks=True, heads=6),
        Case(0, 0, dim=64, window=CAUSAL, heads=6, packed=((100, 300), (200, 140), (33, 33))),
        Case(333, 517, dim=256, window=CAUSAL, sinks=True, heads=6),
        Case(0, 0, dim=192, value_dim=128, window=CAUSAL, chunk=77, heads=6, packed=((100, 300), (200, 140), (33, 33))),
    ):
        x = Inputs.of(case, generator)
        out = torch.empty(*x.q.shape[:-1], case.value_dim, dtype=case.dtype, device="cuda")
        lse = torch.empty(*x.q.shape[:-3], case.heads, case.rows, device="cuda")
        dout = torch.randn(out.shape, generator=generator, device="cuda").to(case.dtype)
        gradients = [torch.empty_like(t) for t in (x.q, x.k, x.v)]
        gradients.append(torch.empty_like(x.options["sinks"]) if case.sinks else None)

        def call():
            library.forward(x.q, x.k, x.v, out=out, lse=lse, **x.options)
            library.backward(
                dout, x.q, x.k, x.v, out, lse, gradients=gradients, deterministic=True, **x.options
            )

        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        for _ in range(3):
            for t in (x.q, x.k, x.v, dout):
                t.copy_(torch.randn(t.shape, generator=generator, device="cuda"))
            if case.packed:
                for starts in x.options["starts"]:
                    starts[1:-1] = torch.randint(0, 330, (2,), generator=generator, device="cuda").sort().values
            results = [out, lse, *(g for g in gradients if g is not None)]
            for t in results:
                t.fill_(torch.nan)
            graph.replay()
            replayed = [t.clone() for t in results]
            call()
            for one, two in zip(replayed, results):
                if not torch.equal(one, two):
                    raise AssertionError(f"{case}: expected the same bits from a captured graph; got others")


def both(library, q, k, v, dout, **options):
    """out, lse, dq, dk, dv."""
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device="cuda")
    out = library.forward(q, k, v, lse=lse, **options)
    gradients = [torch.full_like(t, torch.nan) for t in (q, k, v)]
    library.backward(dout, q, k, v, out, lse, gradients=[*gradients, None], deterministic=True, **options)
    return [out, lse, *gradients]


def check_repeats(library, generator, times):
    """The same bits, however often: of few heads, and of many. A race that shows once in a hundred calls shows here."""
    sizes, shapes = ((64, 64, 6), (128, 128, 6), (192, 128, 3), (256, 256, 3)), ((1, 1000, 1), (16, 300, 8))
    for (dim, value_dim, heads), (batch, rows, more) in itertools.product(sizes, shapes):
        q, k, v, dout = (
            torch.randn(batch, rows, heads * more, n, generator=generator, device="cuda").bfloat16()
            for n in (dim, dim, value_dim, value_dim)
        )
        want = both(library, q, k, v, dout, window=CAUSAL)
        for number in range(times):
            for name, one, two in zip(("out", "lse", *NAMES), want, both(library, q, k, v, dout, window=CAUSAL)):
                if not torch.equal(one, two):
                    raise AssertionError(f"heads of {dim}: expected the same bits of {name} in call {number}; got others")


def check_large(library, generator):
    """Tensors of more than 2^31 numbers: the last rows see the last 1000 keys, and are those of a call on these alone."""
    for dim, heads in ((64, 16), (128, 8), (256, 4)):
        many, few = (1 << 21) + 1280, 2560
        k, v = (torch.randn(1, many, heads, dim, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for rows in (64, many):
            q, dout = (torch.randn(1, rows, heads, dim, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            assert k.numel() > 1 << 31
            got = both(library, q, k, v, dout, window=(1000, 0))
            last = min(rows, few)
            want = both(library, *(t[:, -n:].contiguous() for t, n in ((q, last), (k, few), (v, few), (dout, last))), window=(1000, 0))
            for name, one, two in zip(("out", "lse", *NAMES), got, want):
                cut = min(1000, last)  # of all gradients those that rows before do not add to
                one, two = (t[..., -cut:] if name == "lse" else t[:, -cut:] for t in (one, two))
                error = ((one.double() - two.double()).norm() / two.double().norm()).item()
                if not error < 2**-8:  # the same sums in other tiles, rounded to 16 bits once
                    raise AssertionError(f"{rows} rows of {dim}: expected {name} of the last {cut}; got an error of {error:.1e}")
            del q, dout, got, want
        del k, v


if __name__ == "__main__":
    library, generator, cases, args = arguments()
    failed = run(check, cases, library, generator)
    check_captured(library, generator)
    check_repeats(library, generator, 30 if args.quick else 1000)
    if args.large:
        check_large(library, generator)
    sys.exit(failed)
