"""Attention backward on a GPU against float64 autograd, in the order from small to large.

    test_backward_cuda.py --library attention.so [--quick]

The rule is that of test_forward_cuda.py, for each gradient: at most twice the error of autograd through plain attention
in the inputs' own type, plus 1e-5, and with a softcap also the error of tanh.approx, 2^-10 of the largest gradient.
dsinks sums over all rows, so that its plain error can be small by chance: 2^-8 of the largest is allowed, what one
rounding of out in delta comes to when all rows lean to one side. Gradients and workspace hold NaN before each call.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
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


def compare(case, got, want, near):
    worst = 0.0
    for name, g, w, n in zip(NAMES, got, want, near):
        if w.numel() == 0:
            continue
        error = (g.double() - w).abs().max().item()
        allowed = 2 * (n.double() - w).abs().max().item() + 1e-5
        if case.softcap > 0:
            allowed += 2**-10 * w.abs().max().item()
        if name == "dsinks":
            allowed += 2**-8 * w.abs().max().item()
        if not error <= allowed:
            raise AssertionError(f"{case}: wanted an error of at most {allowed:.2e} in {name}; got {error:.2e}")
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

    def call(deterministic):
        gradients = [torch.full(t.shape, torch.nan, dtype=t.dtype, device="cuda") for t in (x.q, x.k, x.v)]
        gradients.append(torch.full_like(sinks, torch.nan) if case.sinks else None)
        library.space.fill_(255)
        library.backward(
            dout, x.q, x.k, x.v, out, lse, dlse=dlse, gradients=gradients, deterministic=deterministic, **x.options
        )
        return gradients[: 4 if case.sinks else 3]

    got, fixed, again = call(False), call(True), call(True)
    worst = max(compare(case, got, want, near), compare(case, fixed, want, near))
    for name, one, two in zip(NAMES, fixed, again):
        if not torch.equal(one, two):
            raise AssertionError(f"{case}: wanted the same bits of {name} from a second deterministic call; got others")
    for name, one, two in list(zip(NAMES, got, fixed))[1:]:
        if not torch.equal(one, two):
            raise AssertionError(f"{case}: wanted the same bits of {name} in any case; got others")
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
                    raise AssertionError(f"{case}: wanted the same bits from a captured graph; got others")


if __name__ == "__main__":
    library, generator, cases, _ = arguments()
    failed = run(check, cases, library, generator)
    check_captured(library, generator)
    sys.exit(failed)
