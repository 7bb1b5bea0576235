"""Mamba's gated norm on a GPU beside transformers' and torch.compile; bench/peers.py runs it. Its scans and convolutions, beside
mamba-ssm's and causal-conv1d's, are in mamba.py."""

import torch
from bench.lib.gpu_common import backward_of, leaves_of, randoms, step_of

EPS = 1e-5
SHAPES = ((16384, 1024), (16384, 5120), (4096, 16384))  # short rows, mamba2-2.7b's, Nemotron-H's


def plain(x, z, w):
    """MambaRMSNormGated of transformers."""
    h = x.float() * torch.nn.functional.silu(z.float())
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def run(c):
    for rows, cols in SHAPES:
        if c.wants_some(("gated_rms_norm", "gated_rms_norm_bwd", "gated_rms_norm_step"), f"{rows}x{cols}"):
            one_shape(c, rows, cols)


def one_shape(c, rows, cols):
    ops, face, few = c.ops["mamba"], c.face("mamba"), slice(0, 64)
    shape, one = f"{rows}x{cols}", rows * cols * 2
    x, z, dy = randoms(rows, cols), randoms(rows, cols), randoms(rows, cols)
    w = torch.randn(cols, device="cuda").bfloat16()
    wide = lambda x, z, w: (lambda h: w * h * torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS))(x * torch.nn.functional.silu(z))
    rstd = [ops.gated_rms_norm_fwd(a, b, w, EPS, cols, False)[1] for a, b in zip(x, z, strict=True)]
    leaf = leaves_of(x, z, w)

    def gradients():
        inputs = [t.double().requires_grad_() for t in (x[0][few], z[0][few], w)]
        expected = torch.autograd.grad(wide(*inputs), inputs, dy[0][few].double())
        return ops.gated_rms_norm_bwd(dy[0][few], x[0][few], z[0][few], w, rstd[0][few], cols, False), expected

    with torch.no_grad():
        fast = c.compiled(plain)
        c.run("gated_rms_norm", shape, {
            "ours": lambda i: ops.gated_rms_norm(x[i], z[i], w, EPS, cols, False),
            "transformers": lambda i: plain(x[i], z[i], w),
            "torch.compile": lambda i: fast(x[i], z[i], w),
        }, 3 * one, "0.90 of copy",
           lambda: ([ops.gated_rms_norm(x[0][few], z[0][few], w, EPS, cols, False)],
                    [wide(*(t.double() for t in (x[0][few], z[0][few], w)))]))  # fmt: skip
    fast = c.compiled(plain)
    kept = lambda fn: backward_of([fn(*t) for t in leaf], leaf, dy)
    c.run("gated_rms_norm_bwd", shape, {
        "ours": lambda i: ops.gated_rms_norm_bwd(dy[i], x[i], z[i], w, rstd[i], cols, False),
        "transformers": kept(plain),
        "torch.compile": kept(fast),
    }, 5 * one, "0.85 of copy", gradients)  # fmt: skip
    c.run("gated_rms_norm_step", shape, {
        "ours": step_of(lambda x, z, w: face.rmsnorm_fn(x, w, None, z, EPS, None, False), leaf, dy),
        "transformers": step_of(plain, leaf, dy),
        "torch.compile": step_of(fast, leaf, dy),
    }, 8 * one, "1.0 of the best")  # fmt: skip
