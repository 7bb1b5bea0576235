"""On a GPU: a captured graph replayed with other routings, all sizes of calls, the same bits run after run.

    test_routings_cuda.py --packages build/packages

Skips (exit code 77) where there is no GPU or no package with CUDA kernels. What a graph gives for a routing must be, bit by
bit, what a call gives that was not captured; the first routing of each is checked against float64.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

SWIGLU = ("swiglu", 1.0, float("inf"), False)
OAI = ("swiglu_oai", 1.702, 7.0, True)
# tokens, experts a token, experts, hidden, inner, options, transposed, bias
CASES = [
    (64, 2, 8, 128, 64, SWIGLU, False, False),
    (1, 8, 128, 256, 64, SWIGLU, False, False),
    (8, 8, 40, 144, 80, OAI, False, True),
    (16, 8, 128, 256, 96, SWIGLU, False, True),
    (16, 4, 32, 288, 96, OAI, True, True),
    (1000, 4, 32, 288, 96, OAI, True, True),
    (1000, 3, 40, 137, 45, SWIGLU, False, True),
    (4096, 8, 64, 512, 192, SWIGLU, False, False),
    (32768, 2, 16, 256, 128, SWIGLU, False, False),
]


def load(packages):
    for metadata in packages.glob("moe/build/*-cu*/metadata.json"):
        package_id = json.loads(metadata.read_text())["id"]
        torch.ops.load_library(metadata.parent / f"{package_id}.abi3.so")
        return getattr(torch.ops, package_id)
    return None


def routings(tokens, top_k, experts):
    """Balanced, at random, all to one, nobody's, a few experts alone."""
    shape = (tokens, top_k)
    return {
        "random": torch.randint(experts, shape),
        "balanced": torch.arange(tokens * top_k).view(shape) % experts,
        "all to one": torch.full(shape, experts - 1),
        "nobody's": torch.full(shape, experts),
        "two experts, some nobody's": torch.randint(-1, 2, shape),
    }


def in_float64(x, index, weights, w_up, b_up, w_down, b_down, act, alpha, limit, interleaved, transposed, scale_input):
    x, weights = x.double(), weights.double()
    y = torch.zeros_like(x)
    for e in range(w_up.shape[0]):
        token, j = (index == e).nonzero(as_tuple=True)
        up, down = (w[e].double() if transposed else w[e].double().T for w in (w_up, w_down))
        h = x[token] @ up + (0 if b_up is None else b_up[e].double())
        h = h.to(w_up.dtype).double()
        gate, value = (h[:, ::2], h[:, 1::2]) if interleaved else h.chunk(2, -1)
        if act == "swiglu_oai":
            gate, value = gate.clamp(max=limit), value.clamp(-limit, limit) + 1
        rows = gate * torch.sigmoid(alpha * gate) * value @ down + (0 if b_down is None else b_down[e].double())
        y.index_add_(0, token, weights[token, j].unsqueeze(1) * rows)
    return y


def same(a, b):
    return all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(a, b, strict=True))


def check(ops, case, dtype):
    tokens, top_k, experts, hidden, inner, options, transposed, bias = case
    random = lambda *shape: torch.randn(*shape, device="cuda").to(dtype)
    options = (*options, transposed, False)
    up, down = (experts, 2 * inner, hidden), (experts, hidden, inner)
    if transposed:
        up, down = (up[0], up[2], up[1]), (down[0], down[2], down[1])
    w_up, w_down = random(*up) / hidden**0.5, random(*down) / inner**0.5
    b_up, b_down = (random(experts, 2 * inner), random(experts, hidden)) if bias else (None, None)
    x, dy, weights = random(tokens, hidden), random(tokens, hidden), torch.rand(tokens, top_k, device="cuda")
    index = torch.empty(tokens, top_k, dtype=torch.long, device="cuda")

    def run():
        inputs = (x, index, weights, w_up, b_up, w_down, b_down)
        y, *saved = ops.moe_experts_train(*inputs, *options)
        gradients = ops.moe_experts_bwd(dy, *inputs, *saved, *options, True)
        return [ops.moe_experts(*inputs, *options), y, *gradients]

    given = routings(tokens, top_k, experts)
    index.copy_(given["random"])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    stream.synchronize()
    graph, failed = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph, stream=stream):
        captured = run()
    for name, routing in given.items():
        index.copy_(routing)
        want = run()
        for t in captured:
            t.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        if not same(captured, want):
            failed.append(f"{case} {dtype} {name}: a replay has other bits than a call")
        if not same(run(), want):
            failed.append(f"{case} {dtype} {name}: other bits in another run")
        reference = in_float64(x, index, weights, w_up, b_up, w_down, b_down, *options)
        error = (want[1].double() - reference).norm()
        # h, A, rows and y are rounded once each
        allowed = 4 * (2e-6 if dtype == torch.float32 else 2**-8) * reference.norm()
        if not (error <= allowed and torch.equal(want[0], want[1])):
            failed.append(f"{case} {dtype} {name}: error {error:.2e}, expected at most {allowed:.2e}, both forwards equal")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here")
        return 77
    ops = load(args.packages)
    if ops is None:
        print(f"no package moe with CUDA kernels in {args.packages}")
        return 77
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = [line for case in CASES for dtype in (torch.bfloat16, torch.float32) for line in check(ops, case, dtype)]
    print("\n".join(failed) or f"{len(CASES)} cases, five routings each: graphs, calls and float64 agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
