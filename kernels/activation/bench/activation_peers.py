"""Activations and gates on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

import torch
from bench.lib.gates import FEW, SHAPES, gates
from bench.lib.gpu_common import backward_of, randoms

# our op: transformers' name of it, Liger's class
ACTS = {"silu": ("silu", None), "gelu": ("gelu", None), "gelu_tanh": ("gelu_pytorch_tanh", None), "gelu_new": ("gelu_new", None),
        "gelu_fast": ("gelu_fast", None), "gelu_quick": ("quick_gelu", None), "relu_squared": ("relu2", "LigerReLUSquaredFunction")}  # fmt: skip
GATES = {"silu_and_mul": ("silu", "LigerSiLUMulFunction"), "gelu_and_mul": ("gelu", None),
         "gelu_tanh_and_mul": ("gelu_pytorch_tanh", "LigerGELUMulFunction")}  # fmt: skip


def run(c):
    for rows, cols in SHAPES:
        shape = f"{rows}x{cols}"
        for op, (name, liger) in ACTS.items():
            if c.wants_some((op, op + "_bwd"), shape):
                unary(c, op, name, liger, shape, rows, cols)
    gates(c, "activation", GATES, joined=True)


def unary(c, op, name, liger, shape, rows, cols):
    from transformers.activations import ACT2FN

    layer, ops, one = ACT2FN[name], c.ops["activation"], rows * cols * 2
    liger = liger and c.liger and getattr(c.liger, liger).apply
    forward, backward = getattr(ops, op), getattr(ops, op + "_bwd")
    x, dy = randoms(rows, cols, scale=2), randoms(rows, cols)
    with torch.no_grad():
        fast = c.compiled(layer)
        c.run(op, shape, {
            "ours": lambda i: forward(x[i]),
            "transformers": lambda i: layer(x[i]),
            "torch.compile": lambda i: fast(x[i]),
            "Liger": liger and (lambda i: liger(x[i])),
        }, 2 * one, "0.95 of copy", lambda: ([forward(x[0])[FEW]], [layer(x[0][FEW].double())]))  # fmt: skip
    leaf = [t.detach().clone().requires_grad_() for t in x]
    graph = lambda fn: backward_of([fn(t) for t in leaf], leaf, dy)

    def gradient():
        wide = x[0][FEW].double().requires_grad_()
        return [backward(dy[0][FEW], x[0][FEW])], torch.autograd.grad(layer(wide), wide, dy[0][FEW].double())

    c.run(op + "_bwd", shape, {
        "ours": lambda i: backward(dy[i], x[i]),
        "transformers": graph(layer),
        "torch.compile": graph(c.compiled(layer)),
        "Liger": liger and graph(liger),
    }, 3 * one, "0.95 of copy", gradient)  # fmt: skip
