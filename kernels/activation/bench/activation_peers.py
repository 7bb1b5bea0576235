"""Activations and gates on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

import torch
from bench.lib.gpu_common import backward_of, randoms


def run(c):
    from transformers.activations import ACT2FN

    act, rows, cols = c.ops["activation"], 16384, 8192
    table = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "gelu_new": "gelu_new",
             "gelu_fast": "gelu_fast", "gelu_quick": "quick_gelu"}  # fmt: skip
    gates = {"silu_and_mul": ("silu", "LigerSiLUMulFunction"), "gelu_and_mul": ("gelu", None),
             "gelu_tanh_and_mul": ("gelu_pytorch_tanh", "LigerGELUMulFunction")}  # fmt: skip
    if not any(c.wants(name) for name in (*table, *gates)):
        return
    shape, one, few = f"{rows}x{cols}", rows * cols * 2, slice(0, 64)
    x, up, dy = randoms(rows, cols, scale=2), randoms(rows, cols), randoms(rows, cols)
    packed = [torch.cat([a, b], -1) for a, b in zip(x, up, strict=True)]
    leaf = [t.detach().clone().requires_grad_() for t in x]
    for op, name in table.items():
        if not c.wants(op):
            continue
        layer = ACT2FN[name]
        with torch.no_grad():
            fast = c.compiled(layer)
            c.run(op, shape, {
                "ours": lambda i: getattr(act, op)(x[i]),
                "transformers": lambda i: layer(x[i]),
                "torch.compile": lambda i: fast(x[i]),
            }, 2 * one, "0.95 of copy",
               lambda: ([getattr(act, op)(x[0])[few]], [layer(x[0][few].double())]))  # fmt: skip
        fast_too = c.compiled(layer)
        c.run(op + "_bwd", shape, {
            "ours": lambda i: getattr(act, op + "_bwd")(dy[i], x[i]),
            "transformers": backward_of([layer(t) for t in leaf], leaf, dy),
            "torch.compile": backward_of([fast_too(t) for t in leaf], leaf, dy),
        }, 3 * one, "0.95 of copy")  # fmt: skip
    both = [(a, b.detach().clone().requires_grad_()) for a, b in zip(leaf, up, strict=True)]
    for op, (name, theirs) in gates.items():
        if not c.wants(op):
            continue
        layer, liger = ACT2FN[name], theirs and c.liger and getattr(c.liger, theirs)
        plain = lambda gate, up: layer(gate) * up
        with torch.no_grad():
            fast = c.compiled(plain)
            c.run(op, shape, {
                "ours": lambda i: getattr(act, op)(packed[i]),
                "transformers": lambda i: plain(x[i], up[i]),
                "torch.compile": lambda i: fast(x[i], up[i]),
                "Liger": liger and (lambda i: liger.apply(x[i], up[i])),
            }, 3 * one, "0.97 of copy",
               lambda: ([getattr(act, op)(packed[0])[few]],
                        [plain(x[0][few].double(), up[0][few].double())]))  # fmt: skip
        graph = lambda fn: backward_of([fn(*t) for t in both], both, dy)

        def gradients():
            inputs = [t[0][few].double().requires_grad_() for t in (x, up)]
            want = torch.autograd.grad(plain(*inputs), inputs, dy[0][few].double())
            return [getattr(act, op + "_bwd")(dy[0][few], packed[0][few])], [torch.cat(want, -1)]

        c.run(op + "_bwd", shape, {
            "ours": lambda i: getattr(act, op + "_bwd")(dy[i], packed[i]),
            "transformers": graph(plain),
            "torch.compile": graph(c.compiled(plain)),
            "Liger": liger and graph(liger.apply),  # writes over its inputs: values drift, the work stays the same
        }, 5 * one, "0.95 of copy", gradients)  # fmt: skip
