"""Softmax, sparsemax, DyT, the divergences, group norm and AdamW on a CPU beside torch's own, interleaved.

    HOTSWAP_PACKAGES=build/packages python -m bench cpu_operators [--threads 1,2] [--only softmax,tvd] [--csv FILE]

Each case: our result is checked against torch's in float64 first, then both are timed alternately, the best of many. A step is
forward and backward, as a user calls them. Shapes are a row of a vocabulary, a hidden size, and short rows.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.results import Results, add_flags  # noqa: E402

import hotswap  # noqa: E402

probability, dyt, norm = (hotswap.load(name) for name in ("probability", "dyt", "norm"))
ROWS = ((4096, 64), (2048, 1024), (64, 32000))
ERROR = {torch.float32: 1e-4, torch.bfloat16: 2**-6}


def plain_sparsemax(x):
    """Martins and Astudillo, 2016: by sorting."""
    z, count = x.sort(-1, descending=True).values, torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    sums = z.cumsum(-1)
    size = (1 + count * z > sums).sum(-1, keepdim=True)
    return F.relu(x - (sums.gather(-1, size - 1) - 1) / size)  # whose slope at 0 is 0


def plain_tvd(p, q):
    return (p - q).abs().sum() * (0.5 / p.shape[0])


def plain_jsd(x, target):
    m = torch.logaddexp(x, target) - 0.6931471805599453
    return (0.5 * target.exp() * (target - m) + 0.5 * x.exp() * (x - m)).sum() / x.shape[0]


def cases(dtype):
    """(name, shape, ours, torch's, leaves)"""
    for rows, cols in ROWS:
        shape = f"{rows}x{cols}"
        x, gamma, alpha = torch.randn(rows, cols), torch.randn(cols), torch.full((1,), 0.5)
        yield "softmax", shape, probability.softmax, lambda t: t.softmax(-1), [x]
        yield "sparsemax", shape, probability.sparsemax, plain_sparsemax, [x]
        yield "dyt", shape, lambda x, a, g: dyt.dyt(x, a, g, g), lambda x, a, g: (a * x).tanh() * g + g, [x, alpha, gamma]
        p, q = (torch.randn(rows, cols).softmax(-1) for _ in range(2))
        target = q.to(dtype)
        wide = lambda t, like: t.to(like.dtype)  # the check calls torch's in float64
        yield "tvd", shape, lambda p, q=target: probability.tvd(p, q), lambda p, q=target: plain_tvd(p, wide(q, p)), [p]
        logs = q.log().to(dtype)
        yield "jsd", shape, lambda x, t=logs: probability.jsd(x, t), lambda x, t=logs: plain_jsd(x, wide(t, x)), [p.log()]
        kl = lambda x, t=logs: F.kl_div(x, wide(t, x), reduction="batchmean", log_target=True)
        yield "kl_div", shape, lambda x, t=logs: probability.kl_div(x, t, log_target=True), kl, [p.log()]
    for shape, groups in (((4, 128, 1024), 32), ((2, 64, 64, 64), 8)):
        x, weight, bias = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
        ours = lambda x, w, b, g=groups: norm.group_norm(x, w, b, g, 1e-5)
        yield "group_norm", "x".join(map(str, shape)), ours, lambda x, w, b, g=groups: F.group_norm(x, g, w, b), [x, weight, bias]


def best_in_turns(calls, seconds=0.6) -> list[float]:
    """Of each call the best time in microseconds."""
    best = [float("inf")] * len(calls)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return [b * 1e6 for b in best]


def step(call, leaves, gradient):
    def run():
        y = call(*leaves)
        torch.autograd.grad(y, leaves, gradient.expand_as(y))

    return run


def check(name, ours, theirs, leaves, dtype):
    exact = [t.detach().double().requires_grad_() for t in leaves]
    got, expected = ours(*leaves), theirs(*exact)
    gradient = torch.randn(got.shape).to(dtype)
    found = [got, *torch.autograd.grad(got, leaves, gradient)]
    for a, b in zip(found, [expected, *torch.autograd.grad(expected, exact, gradient.double())]):
        error = ((a.double() - b).norm() / b.norm()).item()
        if not error <= ERROR[dtype]:
            sys.exit(f"{name} {dtype}: expected torch's values in float64; got others, by {error:.2e}")


def adamw(report, dtype, threads):
    sizes = [(576, 576), (1536, 576), (576, 1536), (576,)] * 8
    made = {}
    for name, build in {"ours": hotswap.AdamW, "torch": lambda p: torch.optim.AdamW(p, fused=True)}.items():
        parameters = [torch.nn.Parameter(torch.randn(size).to(dtype)) for size in sizes]
        for p in parameters:
            p.grad = torch.randn_like(p)
        made[name] = build(parameters)
    ours, theirs = best_in_turns([o.step for o in made.values()])
    report.add(kind="op", what="adamw", shape=f"{len(sizes)} tensors", dtype=str(dtype).removeprefix("torch."), threads=threads,
               ours=ours, peer=theirs, peer_name="torch, fused", unit="us", target=1.0)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2])
    parser.add_argument("--only", type=lambda s: s.split(","), default=[])
    add_flags(parser)
    args = parser.parse_args()
    report = Results(args)
    for threads in args.threads:
        torch.set_num_threads(threads)
        for dtype in (torch.float32, torch.bfloat16):
            kind = str(dtype).removeprefix("torch.")
            torch.manual_seed(0)
            for name, shape, ours, theirs, inputs in cases(dtype):
                if args.only and name not in args.only:
                    continue
                leaves = [t.to(dtype).requires_grad_() for t in inputs]
                check(name, ours, theirs, leaves, dtype)
                gradient = torch.ones((), dtype=dtype)
                with torch.no_grad():
                    forward = best_in_turns([lambda: ours(*leaves), lambda: theirs(*leaves)])
                both = best_in_turns([step(ours, leaves, gradient), step(theirs, leaves, gradient)])
                for what, (a, b) in ((name, forward), (f"{name}_step", both)):
                    report.add(kind="op", what=what, shape=shape, dtype=kind, threads=threads, ours=a, peer=b, peer_name="torch",
                               unit="us", target=1.0)  # fmt: skip
            if not args.only or "adamw" in args.only:
                adamw(report, dtype, threads)
    print("\n".join(f"below torch: {r['what']} {r['shape']} {r['dtype']} {r['threads']} threads {r['ratio']}" for r in report.missed()))
    report.write()


if __name__ == "__main__":
    main()
