"""Dynamic tanh on a GPU beside torch, torch.compile and Liger; bench/peers.py runs it."""

import torch
from gpu_common import backward_of, randoms


def plain(x, alpha, gamma, beta):
    return (alpha * x).tanh() * gamma + beta


def run(c):
    if not c.wants("dyt"):
        return
    ops, L, few, rows, cols = c.ops["dyt"], c.liger, slice(0, 256), 16384, 4096
    shape, one = f"{rows}x{cols}", rows * cols * 2
    x, dy = randoms(rows, cols), randoms(rows, cols)
    alpha = torch.full((1,), 0.5, device="cuda").bfloat16()
    gamma, beta = torch.randn(cols, device="cuda").bfloat16(), torch.randn(cols, device="cuda").bfloat16()
    wide = [t.double() for t in (alpha, gamma, beta)]
    with torch.no_grad():
        fast = c.compiled(plain)
        c.run("dyt", shape, {
            "ours": lambda i: ops.dyt(x[i], alpha, gamma, beta),
            "torch; four kernels": lambda i: plain(x[i], alpha, gamma, beta),
            "torch.compile": lambda i: fast(x[i], alpha, gamma, beta),
            "Liger": L and (lambda i: L.LigerDyTFunction.apply(x[i], alpha, gamma, beta)),
        }, 2 * one, "0.90 of copy",
           lambda: ([ops.dyt(x[0], alpha, gamma, beta)[few]], [plain(x[0][few].double(), *wide)]))  # fmt: skip
    leaf = [t.detach().clone().requires_grad_() for t in x]
    weights = [t.detach().clone().requires_grad_() for t in (alpha, gamma, beta)]
    graph = lambda fn: backward_of([fn(t, *weights) for t in leaf], [(t, *weights) for t in leaf], dy)
    c.run("dyt_bwd", shape, {
        "ours": lambda i: ops.dyt_bwd(dy[i], x[i], alpha, gamma),
        "torch": graph(plain),
        "torch.compile": graph(c.compiled(plain)),
        "Liger": L and graph(L.LigerDyTFunction.apply),
    }, 3 * one, "0.85 of copy")  # fmt: skip
