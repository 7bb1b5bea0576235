"""Gated MLPs on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

import torch
from bench.lib.gpu_common import backward_of, randoms

SHAPES = ((16384, 1024), (16384, 8192), (8192, 28672))  # short rows, and the inner sizes of Llama-1B's and 70B's MLPs
GATES = {"swiglu": ("silu", "LigerSiLUMulFunction"), "geglu": ("gelu_pytorch_tanh", "LigerGELUMulFunction")}
FEW = slice(0, 64)  # rows that are checked


def run(c):
    for rows, cols in SHAPES:
        for op, names in GATES.items():
            if c.wants_some((op, op + "_bwd"), f"{rows}x{cols}"):
                gate(c, op, *names, rows, cols)


def gate(c, op, name, liger, rows, cols):
    from transformers.activations import ACT2FN

    layer, ops, shape, one = ACT2FN[name], c.ops["mlp"], f"{rows}x{cols}", rows * cols * 2
    liger = c.liger and getattr(c.liger, liger).apply
    forward, backward = getattr(ops, op), getattr(ops, op + "_bwd")
    x, up, dy = randoms(rows, cols, scale=2), randoms(rows, cols), randoms(rows, cols)
    plain = lambda gate, up: layer(gate) * up
    with torch.no_grad():
        fast = c.compiled(plain)
        c.run(op, shape, {
            "ours": lambda i: forward(x[i], up[i]),
            "transformers": lambda i: plain(x[i], up[i]),
            "torch.compile": lambda i: fast(x[i], up[i]),
            "Liger": liger and (lambda i: liger(x[i], up[i])),
        }, 3 * one, "0.97 of copy",
           lambda: ([forward(x[0], up[0])[FEW]], [plain(x[0][FEW].double(), up[0][FEW].double())]))  # fmt: skip
    both = [tuple(t.detach().clone().requires_grad_() for t in pair) for pair in zip(x, up, strict=True)]
    graph = lambda fn: backward_of([fn(*t) for t in both], both, dy)

    def gradients():
        inputs = [t[0][FEW].double().requires_grad_() for t in (x, up)]
        expected = torch.autograd.grad(plain(*inputs), inputs, dy[0][FEW].double())
        return backward(dy[0][FEW], x[0][FEW], up[0][FEW]), expected

    c.run(op + "_bwd", shape, {
        "ours": lambda i: backward(dy[i], x[i], up[i]),
        "transformers": graph(plain),
        "torch.compile": graph(c.compiled(plain)),
        "Liger": liger and graph(liger),  # writes over its inputs: values drift, the work stays the same
    }, 5 * one, "0.95 of copy", gradients)  # fmt: skip
