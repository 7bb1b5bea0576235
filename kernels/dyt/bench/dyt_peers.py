"""Dynamic tanh on a GPU beside torch, torch.compile and Liger; bench/peers.py runs it."""

import torch
from bench.lib.gpu_common import backward_of, leaves_of, randoms, step_of


def plain(x, alpha, gamma, beta):
    return (alpha * x).tanh() * gamma + beta


def run(c):
    for rows, cols in ((16384, 1024), (16384, 4096), (4096, 16384)):
        one_shape(c, rows, cols)


def one_shape(c, rows, cols):
    ops, L, few = c.ops["dyt"], c.liger, slice(0, 256)
    shape, one = f"{rows}x{cols}", rows * cols * 2
    if not c.wants_some(("dyt", "dyt_bwd", "dyt_step"), shape):
        return
    face = c.face("dyt")
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
    leaf, fast = leaves_of(x, alpha, gamma, beta), c.compiled(plain)
    kept = lambda fn: backward_of([fn(*t) for t in leaf], leaf, dy)
    step = lambda fn: step_of(fn, leaf, dy)
    c.run("dyt_bwd", shape, {
        "ours": lambda i: ops.dyt_bwd(dy[i], x[i], alpha, gamma),
        "torch": kept(plain),
        "torch.compile": kept(fast),
        "Liger": L and kept(L.LigerDyTFunction.apply),
    }, 3 * one, "0.90 of copy")  # fmt: skip
    c.run("dyt_step", shape, {
        "ours": step(face.dyt),
        "torch.compile": step(fast),
        "Liger": L and step(L.LigerDyTFunction.apply),
    }, 5 * one, "1.0 of the best")  # fmt: skip
