"""Rows of probabilities on a GPU beside torch, torch.compile and Liger; bench/peers.py runs it."""

import torch
from bench.lib.gpu_common import backward_of, leaves_of, randoms, step_of

ROWS = ((16384, 1024), (16384, 4096), (4096, 32768), (2048, 128256))  # short rows, a hidden size, vocabularies
LN2 = 0.6931471805599453


def run(c):
    for rows, cols in ROWS:
        softmaxes(c, rows, cols)
    for rows, cols in ((16384, 1024), (8192, 32000), (2048, 128256)):
        for dtype in (torch.float32, torch.bfloat16):
            total_variation(c, rows, cols, dtype)
        divergences(c, rows, cols)


def plain_softmax(x):
    return x.softmax(-1)


def softmaxes(c, rows, cols):
    ops, L, few = c.ops["probability"], c.liger, slice(0, 64)
    shape, one = f"{rows}x{cols}", rows * cols * 2
    if not c.wants_some([op + part for op in ("softmax", "sparsemax") for part in ("", "_bwd", "_step")], shape):
        return
    face = c.face("probability")
    x, dy = randoms(rows, cols), randoms(rows, cols)
    L = L if cols <= 65536 else None  # the longest row that its kernels take
    liger = {
        "softmax": L and L.LigerSoftmaxFunction.apply,
        "sparsemax": L and (lambda t: L.LigerSparsemaxFunction.apply(t, -1)),
    }
    check = lambda: ([ops.softmax(x[0])[few]], [plain_softmax(x[0][few].double())])
    with torch.no_grad():
        fast = c.compiled(plain_softmax)
        c.run("softmax", shape, {
            "ours": lambda i: ops.softmax(x[i]),
            "torch": lambda i: plain_softmax(x[i]),
            "torch.compile": lambda i: fast(x[i]),
            "Liger": L and (lambda i: liger["softmax"](x[i])),
        }, 2 * one, "0.90 of copy", check)  # fmt: skip
        c.run("sparsemax", shape, {
            "ours": lambda i: ops.sparsemax(x[i]),
            "Liger": L and (lambda i: liger["sparsemax"](x[i])),
        }, 2 * one, "0.50 of copy")  # fmt: skip
    leaf = leaves_of(x)
    for op, peers in (("softmax", {"torch": plain_softmax, "Liger": liger["softmax"]}), ("sparsemax", {"Liger": liger["sparsemax"]})):
        y = [getattr(ops, op)(t) for t in x]
        kept = lambda fn: fn and backward_of([fn(*t) for t in leaf], leaf, dy)
        step = lambda fn: fn and step_of(fn, leaf, dy)
        backward = getattr(ops, f"{op}_bwd")
        c.run(f"{op}_bwd", shape, {"ours": lambda i: backward(dy[i], y[i])} | {name: kept(fn) for name, fn in peers.items()},
              3 * one, "0.85 of copy")  # fmt: skip
        c.run(f"{op}_step", shape, {"ours": step(getattr(face, op))} | {name: step(fn) for name, fn in peers.items()},
              5 * one, "1.0 of torch")  # fmt: skip


def total_variation(c, rows, cols, dtype):
    L = c.liger
    name, shape, one = str(dtype).removeprefix("torch."), f"{rows}x{cols}", rows * cols * dtype.itemsize
    if not c.wants_some(("tvd", "tvd_step"), shape):
        return
    face = c.face("probability")
    x, target = ([(torch.randn(rows, cols, device="cuda").softmax(-1)).to(dtype) for _ in range(3)] for _ in range(2))
    plain = lambda p, q: (p - q).abs().sum() * (0.5 / rows)
    ours = lambda p, q: face.tvd(p, q)
    with torch.no_grad():
        fast = c.compiled(plain)
        c.run("tvd", shape, {
            "ours": lambda i: ours(x[i], target[i]),
            "torch.compile": lambda i: fast(x[i], target[i]),
        }, 2 * one, "0.90 of copy", lambda: ([ours(x[0], target[0])], [plain(x[0].double(), target[0].double())]),
           dtype=name)  # fmt: skip
    leaf = leaves_of(x)
    targets = iter(range(10**9))
    step = lambda fn: fn and step_of(lambda p: fn(p, target[next(targets) % 3]), leaf)
    c.run("tvd_step", shape, {
        "ours": step(ours),
        "torch.compile": step(c.compiled(plain)),
        "Liger": L and step(lambda p, q: L.LigerTVDLossFunction.apply(p, q, None, "batchmean", -100)),
    }, 3 * one, "0.90 of copy", dtype=name)  # fmt: skip


def plain_jsd(x, target):
    m = torch.logaddexp(x, target) - LN2
    return (0.5 * target.exp() * (target - m) + 0.5 * x.exp() * (x - m)).sum(-1)


def divergences(c, rows, cols):
    ops, L, few = c.ops["probability"], c.liger, slice(0, 16)
    shape, one = f"{rows}x{cols}", rows * cols * 2
    if not c.wants_some(("jsd", "jsd_step", "kl_div_step", "jsd_of_logits_"), shape):
        return
    face = c.face("probability")
    z, t = randoms(rows, cols), randoms(rows, cols)
    q, p = ([v.float().log_softmax(-1).bfloat16() for v in some] for some in (z, t))
    wide = lambda x, target: plain_jsd(x.float(), target.float())
    with torch.no_grad():
        fast = c.compiled(wide)
        c.run("jsd", shape, {
            "ours": lambda i: ops.jsd(q[i], p[i], None, -100, 0.5),
            "torch.compile": lambda i: fast(q[i], p[i]),
        }, 2 * one, "0.60 of copy",
           lambda: ([ops.jsd(q[0], p[0], None, -100, 0.5)[few]], [plain_jsd(q[0][few].double(), p[0][few].double())]))  # fmt: skip
    leaf, used = leaves_of(q), iter(range(10**9))
    step = lambda fn: fn and step_of(lambda x: fn(x, p[next(used) % 3]), leaf)
    c.run("jsd_step", shape, {
        "ours": step(face.jsd),
        "torch.compile": step(c.compiled(lambda x, target: wide(x, target).mean())),
        "Liger": L and step(lambda x, target: L.LigerJSDFunction.apply(x, target, None, 0.5, -100, None, None)),
    }, 3 * one, "0.60 of copy")  # fmt: skip
    c.run("kl_div_step", shape, {
        "ours": step(lambda x, target: face.kl_div(x, target, log_target=True)),
        "torch": step(lambda x, target: torch.nn.functional.kl_div(x, target, reduction="batchmean", log_target=True)),
        "Liger": L and step(lambda x, target: L.LigerKLDivLossFunction.apply(x, target, "batchmean", True, 1e-10)),
    }, 3 * one, "0.60 of copy")  # fmt: skip
    place = [v.clone() for v in z]
    c.run("jsd_of_logits_", shape, {
        "ours": lambda i: ops.jsd_of_logits_(place[i], t[i], 0.5, 1.0),
    }, 3 * one, "0.60 of copy")  # fmt: skip
