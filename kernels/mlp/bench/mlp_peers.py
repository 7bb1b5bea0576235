"""Gated MLPs on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

from bench.lib.gpu_common import randoms


def run(c):
    from transformers.activations import ACT2FN

    mlp, rows, cols = c.ops["mlp"], 16384, 8192
    if not any(c.wants(name) for name in ("swiglu", "geglu")):
        return
    shape, one, few = f"{rows}x{cols}", rows * cols * 2, slice(0, 64)
    x, up, dy = randoms(rows, cols, scale=2), randoms(rows, cols), randoms(rows, cols)
    for op, layer in (("swiglu", ACT2FN["silu"]), ("geglu", ACT2FN["gelu_pytorch_tanh"])):
        c.run(op, shape, {
            "ours": lambda i: getattr(mlp, op)(x[i], up[i]),
        }, 3 * one, "0.97 of copy",
           lambda: ([getattr(mlp, op)(x[0], up[0])[few]],
                    [layer(x[0][few].double()) * up[0][few].double()]))  # fmt: skip
        c.run(op + "_bwd", shape, {
            "ours": lambda i: getattr(mlp, op + "_bwd")(dy[i], x[i], up[i])
        }, 5 * one, "0.95 of copy")  # fmt: skip
