"""act(gate) * up on a GPU beside torch.compile, transformers and Liger: of the activation and the mlp package, whose ops differ in
how they take gate and up."""

import torch
from bench.lib.gpu_common import backward_of, randoms

SHAPES = ((16384, 1024), (16384, 8192), (8192, 28672))  # short rows, and the inner sizes of Llama-1B's and 70B's MLPs
FEW = slice(0, 64)  # rows that are checked


def gates(c, package, table, joined):
    """table: op -> transformers' name of act, Liger's class or None. joined: the op takes [gate | up] as one tensor."""
    for rows, cols in SHAPES:
        for op, names in table.items():
            if c.wants_some((op, op + "_bwd"), f"{rows}x{cols}"):
                gate(c, c.ops[package], op, *names, rows, cols, joined)


def gate(c, ops, op, name, liger, rows, cols, joined):
    from transformers.activations import ACT2FN

    layer, shape, one = ACT2FN[name], f"{rows}x{cols}", rows * cols * 2
    liger = liger and c.liger and getattr(c.liger, liger).apply
    forward, backward = getattr(ops, op), getattr(ops, op + "_bwd")
    as_taken = lambda gate, up: (torch.cat([gate, up], -1),) if joined else (gate, up)
    x, up, dy = randoms(rows, cols, scale=2), randoms(rows, cols), randoms(rows, cols)
    taken = [as_taken(a, b) for a, b in zip(x, up, strict=True)]
    plain = lambda gate, up: layer(gate) * up
    with torch.no_grad():
        fast = c.compiled(plain)
        c.run(op, shape, {
            "ours": lambda i: forward(*taken[i]),
            "transformers": lambda i: plain(x[i], up[i]),
            "torch.compile": lambda i: fast(x[i], up[i]),
            "Liger": liger and (lambda i: liger(x[i], up[i])),
        }, 3 * one, "0.97 of copy",
           lambda: ([forward(*taken[0])[FEW]], [plain(x[0][FEW].double(), up[0][FEW].double())]))  # fmt: skip
    both = [tuple(t.detach().clone().requires_grad_() for t in pair) for pair in zip(x, up, strict=True)]
    graph = lambda fn: backward_of([fn(*t) for t in both], both, dy)

    def gradients():
        inputs = [t[0][FEW].double().requires_grad_() for t in (x, up)]
        expected = torch.autograd.grad(plain(*inputs), inputs, dy[0][FEW].double())
        got = backward(dy[0][FEW], *(t[FEW] for t in taken[0]))
        return [got] if joined else got, as_taken(*expected)

    c.run(op + "_bwd", shape, {
        "ours": lambda i: backward(dy[i], *taken[i]),
        "transformers": graph(plain),
        "torch.compile": graph(c.compiled(plain)),
        "Liger": liger and graph(liger),  # writes over its inputs: values drift, the work stays the same
    }, 5 * one, "0.95 of copy", gradients)  # fmt: skip
