"""Rows of probabilities on a GPU beside torch, torch.compile and Liger; bench/peers.py runs it."""

import torch
from gpu_common import backward_of, randoms


def run(c):
    for rows, cols in ((16384, 4096), (4096, 32768)):
        softmaxes(c, rows, cols)
    divergences(c, 2048, 128256)


def softmaxes(c, rows, cols):
    ops, L, few = c.ops["probability"], c.liger, slice(0, 64)
    if not (c.wants("softmax") or c.wants("sparsemax")):
        return
    shape, one = f"{rows}x{cols}", rows * cols * 2
    x, dy = randoms(rows, cols), randoms(rows, cols)
    plain = lambda t: t.softmax(-1)
    with torch.no_grad():
        fast = c.compiled(plain)
        c.run("softmax", shape, {
            "ours": lambda i: ops.softmax(x[i]),
            "torch": lambda i: plain(x[i]),
            "torch.compile": lambda i: fast(x[i]),
            "Liger": L and (lambda i: L.LigerSoftmaxFunction.apply(x[i])),
        }, 2 * one, "0.90 of copy", lambda: ([ops.softmax(x[0])[few]], [plain(x[0][few].double())]))  # fmt: skip
        c.run("sparsemax", shape, {
            "ours": lambda i: ops.sparsemax(x[i]),
            "Liger": L and (lambda i: L.LigerSparsemaxFunction.apply(x[i], -1)),
        }, 2 * one, "0.60 of copy")  # fmt: skip
    leaf, y = [t.detach().clone().requires_grad_() for t in x], [ops.softmax(t) for t in x]
    graph = lambda fn: backward_of([fn(t) for t in leaf], [(t,) for t in leaf], dy)
    c.run("softmax_bwd", shape, {
        "ours": lambda i: ops.softmax_bwd(dy[i], y[i]),
        "torch": graph(plain),
        "Liger": L and graph(L.LigerSoftmaxFunction.apply),
    }, 3 * one, "0.85 of copy")  # fmt: skip


def divergences(c, rows, cols):
    ops, L, few = c.ops["probability"], c.liger, slice(0, 16)
    if not c.wants("jsd"):
        return
    shape, one = f"{rows}x{cols}", rows * cols * 2
    z, t = randoms(rows, cols), randoms(rows, cols)
    q, p = ([v.float().log_softmax(-1).bfloat16() for v in some] for some in (z, t))

    def plain(x, target):
        m = torch.logaddexp(x, target) - 0.6931471805599453
        return (0.5 * target.exp() * (target - m) + 0.5 * x.exp() * (x - m)).sum(-1)

    with torch.no_grad():
        fast = c.compiled(lambda x, target: plain(x.float(), target.float()))
        c.run("jsd", shape, {
            "ours": lambda i: ops.jsd(q[i], p[i], None, -100, 0.5),
            "torch.compile": lambda i: fast(q[i], p[i]),
            "Liger; with the gradient": L and (lambda i: L.LigerJSDFunction.apply(q[i], p[i], None, 0.5, -100, None, None)),
        }, 2 * one, "0.80 of copy",
           lambda: ([ops.jsd(q[0], p[0], None, -100, 0.5)[few]], [plain(q[0][few].double(), p[0][few].double())]))  # fmt: skip
        place = [v.clone() for v in z]
        c.run("jsd_of_logits_", shape, {
            "ours": lambda i: ops.jsd_of_logits_(place[i], t[i], 0.5, 1.0),
        }, 3 * one, "0.50 of copy")  # fmt: skip
