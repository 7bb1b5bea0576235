"""Norms on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

import torch
from bench.lib.gpu_common import backward_of, leaves_of, randoms, step_of

EPS = 1e-6
# A diffusion model's channels, a few large groups, and the first of them as torch's channels_last.
GROUPS = (((16, 512, 4096), 32, False), ((8, 256, 4096), 8, False), ((32, 320, 32, 32), 32, False), ((16, 512, 64, 64), 32, True))
NORMS = ("rms_norm", "add_rms_norm", "rms_norm_bwd", "add_rms_norm_bwd")


def run(c):
    calls(c)
    norms(c)
    for shape, groups, last in GROUPS:
        group_norms(c, shape, groups, last)


def norms(c):
    F, norm, rows = torch.nn.functional, c.ops["norm"], 16384
    for cols in (2048, 4096, 8192):
        shape, one = f"{rows}x{cols}", rows * cols * 2
        if not c.wants_some((*NORMS, "layer_norm", "layer_norm_bwd"), shape):
            continue
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        x, r, dy, dh = (randoms(rows, cols) for _ in range(4))
        w, b = torch.randn(cols, device="cuda").bfloat16(), torch.randn(cols, device="cuda").bfloat16()
        layer = LlamaRMSNorm(cols, EPS).cuda().bfloat16()
        layer.weight.data.copy_(w)
        leaf = [t.detach().clone().requires_grad_() for t in x]
        wleaf, bleaf = w.clone().requires_grad_(), b.clone().requires_grad_()

        def hf(x, w):
            f = x.float()
            return w * (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)

        def added(x, r, w):
            h = x + r
            return hf(h, w), h

        def wide(x, w):
            f = x.double()
            return f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS) * w.double()

        L, few = c.liger, slice(0, 256)
        with torch.no_grad():
            fast = c.compiled(hf)
            c.run("rms_norm", shape, {
                "ours": lambda i: norm.rms_norm(x[i], w, EPS, 0.0, "llama"),
                "torch": lambda i: F.rms_norm(x[i], (cols,), w, EPS),
                "torch.compile": lambda i: fast(x[i], w),
                "transformers": lambda i: layer(x[i]),
                "Liger": L and (lambda i: L.LigerRMSNormFunction.apply(x[i], w, EPS, 0.0, "llama", False)),
            }, 2 * one, "0.92 of copy",
               lambda: ([norm.rms_norm(x[0], w, EPS, 0.0, "llama")[few]], [wide(x[0][few], w)]))  # fmt: skip
            fast_add = c.compiled(added)
            c.run("add_rms_norm", shape, {
                "ours": lambda i: norm.add_rms_norm(x[i], r[i], w, EPS, 0.0, "llama"),
                "torch; two kernels": lambda i: F.rms_norm(x[i] + r[i], (cols,), w, EPS),
                "torch.compile": lambda i: fast_add(x[i], r[i], w),
                "Liger": L and (lambda i: L.LigerFusedAddRMSNormFunction.apply(x[i], r[i], w, EPS, 0.0, "llama")),
            }, 4 * one, "0.92 of copy",
               lambda: ([norm.add_rms_norm(x[0], r[0], w, EPS, 0.0, "llama")[0][few]],
                        [wide((x[0] + r[0])[few], w)]))  # fmt: skip
        if not c.wants_some((*NORMS[2:], "layer_norm", "layer_norm_bwd"), shape):
            continue
        rstd = [norm.rms_norm_fwd(t, w, EPS, 0.0, "llama")[1] for t in x]
        pair = [(t, wleaf) for t in leaf]

        def rms_gradients():
            few_x, few_w = x[0][few].double().requires_grad_(), w.double().requires_grad_()
            want = torch.autograd.grad(wide(few_x, few_w), (few_x, few_w), dy[0][few].double())
            return norm.rms_norm_bwd(dy[0][few], x[0][few], w, rstd[0][few], 0.0, "llama"), want

        fast = c.compiled(hf)
        graph = lambda fn: backward_of([fn(t, wleaf) for t in leaf], pair, dy)
        c.run("rms_norm_bwd", shape, {
            "ours": lambda i: norm.rms_norm_bwd(dy[i], x[i], w, rstd[i], 0.0, "llama"),
            "torch": graph(lambda t, w: F.rms_norm(t, (cols,), w, EPS)),
            "torch.compile": graph(fast),
            "transformers": graph(hf),
            "Liger": L and graph(lambda t, w: L.LigerRMSNormFunction.apply(t, w, EPS, 0.0, "llama", False)),
        }, 3 * one, "0.85 of copy", rms_gradients)  # fmt: skip
        triple = [(t, r[i].detach().clone().requires_grad_(), wleaf) for i, t in enumerate(leaf)]
        two = list(zip(dy, dh, strict=True))
        graph_of_two = lambda fn: backward_of([fn(*t) for t in triple], triple, two)
        c.run("add_rms_norm_bwd", shape, {
            "ours": lambda i: norm.add_rms_norm_bwd(dy[i], dh[i], x[i], w, rstd[i], 0.0, "llama"),
            "torch.compile": graph_of_two(c.compiled(added)),
            "Liger": L and graph_of_two(lambda x, r, w: L.LigerFusedAddRMSNormFunction.apply(x, r, w, EPS, 0.0, "llama")),
        }, 4 * one, "0.85 of copy")  # fmt: skip
        plain = lambda x, w, b: F.layer_norm(x, (cols,), w, b, EPS)
        with torch.no_grad():
            fast = c.compiled(plain)
            c.run("layer_norm", shape, {
                "ours": lambda i: norm.layer_norm(x[i], w, b, EPS),
                "torch": lambda i: plain(x[i], w, b),
                "torch.compile": lambda i: fast(x[i], w, b),
                "Liger": L and (lambda i: L.LigerLayerNormFunction.apply(x[i], w, b, EPS)),
            }, 2 * one, "0.92 of copy",
               lambda: ([norm.layer_norm(x[0], w, b, EPS)[few]],
                        [plain(x[0][few].double(), w.double(), b.double())]))  # fmt: skip
        saved = [norm.layer_norm_fwd(t, w, b, EPS)[1:] for t in x]
        triple = [(t, wleaf, bleaf) for t in leaf]
        graph = lambda fn: backward_of([fn(t, wleaf, bleaf) for t in leaf], triple, dy)

        def layer_gradients():
            inputs = [t.double().requires_grad_() for t in (x[0][few], w, b)]
            want = torch.autograd.grad(plain(*inputs), inputs, dy[0][few].double())
            return norm.layer_norm_bwd(dy[0][few], x[0][few], w, saved[0][0][few], saved[0][1][few]), want

        c.run("layer_norm_bwd", shape, {
            "ours": lambda i: norm.layer_norm_bwd(dy[i], x[i], w, *saved[i]),
            "torch": graph(plain),
            "torch.compile": graph(c.compiled(plain)),
            "Liger": L and graph(lambda t, w, b: L.LigerLayerNormFunction.apply(t, w, b, EPS)),
        }, 3 * one, "0.85 of copy", layer_gradients)  # fmt: skip


def group_norms(c, sizes, groups, last):
    F, ops, L = torch.nn.functional, c.ops["norm"], c.liger
    shape = "x".join(map(str, sizes)) + f" of {groups}" + ", channels last" * last
    if not c.wants_some(("group_norm", "group_norm_bwd", "group_norm_step"), shape):
        return
    layout = dict(memory_format=torch.channels_last) if last else {}
    x, dy = ([t.to(**layout) for t in randoms(*sizes)] for _ in range(2))
    w, b = (torch.randn(sizes[1], device="cuda").bfloat16() for _ in range(2))
    face, one = c.face("norm"), x[0].numel() * 2
    plain = lambda x, w, b: F.group_norm(x, groups, w, b, EPS)
    liger = lambda x, w, b: L.LigerGroupNormFunction.apply(x, w, b, sizes[1], groups, EPS)
    saved = [ops.group_norm_fwd(t, w, b, groups, EPS)[1:] for t in x]
    leaf = leaves_of(x, w, b)

    def check():
        inputs = [t.double().requires_grad_() for t in (x[0], w, b)]
        want = plain(*inputs)
        made = ops.group_norm_bwd(dy[0], x[0], w, *saved[0], groups)
        return [ops.group_norm(x[0], w, b, groups, EPS), *made], [want, *torch.autograd.grad(want, inputs, dy[0].double())]

    with torch.no_grad():
        c.run("group_norm", shape, {
            "ours": lambda i: ops.group_norm(x[i], w, b, groups, EPS),
            "torch": lambda i: plain(x[i], w, b),
            "Liger": L and not last and (lambda i: liger(x[i], w, b)),
        }, 2 * one, "0.90 of copy")  # fmt: skip
    kept = lambda fn: fn and backward_of([fn(*t) for t in leaf], leaf, dy)
    c.run("group_norm_bwd", shape, {
        "ours": lambda i: ops.group_norm_bwd(dy[i], x[i], w, *saved[i], groups),
        "torch": kept(plain),
        "Liger": L and not last and kept(liger),
    }, 3 * one, "0.90 of copy", check)  # fmt: skip
    step = lambda fn: fn and step_of(fn, leaf, dy)
    c.run("group_norm_step", shape, {
        "ours": step(lambda x, w, b: face.group_norm(x, w, b, groups, EPS)),
        "torch": step(plain),
        "Liger": L and not last and step(liger),
    }, 5 * one, "1.0 of the best")  # fmt: skip


def calls(c):
    """What one call costs its caller: the host's clock, the GPU keeping up."""
    if not c.wants("call", "1x2048"):
        return
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm, x = c.ops["norm"].rms_norm.default, torch.randn(1, 2048, device="cuda").bfloat16()
    w = torch.ones(2048, device="cuda").bfloat16()
    layer, module = LlamaRMSNorm(2048).cuda().bfloat16(), torch.nn.RMSNorm(2048, device="cuda", dtype=torch.bfloat16)
    peers = {
        "ours": lambda: norm(x, w, EPS, 0.0, "llama"),
        "torch": lambda: module(x),
        "transformers": lambda: layer(x),
        "Liger": c.liger and (lambda: c.liger.LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", False)),
    }
    with torch.no_grad():
        times = {name: c.timer.host_microseconds(call) for name, call in peers.items() if call}
    ours = times.pop("ours")
    for name, us in times.items():
        c.report.add(
            kind="call", what="rms_norm from Python", shape="1x2048", dtype="bfloat16", ours=ours, peer=us,
            peer_name=c.names.get(name, name), unit="us", target="15 us",
        )  # fmt: skip
