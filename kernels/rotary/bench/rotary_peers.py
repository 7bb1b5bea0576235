"""Rotary embeddings on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

import torch
from bench.lib.gpu_common import backward_of, leaves_of, randoms

# batch, tokens, heads of queries, of keys, their size: a step of generation, Llama-1B's heads and Llama-8B's
SHAPES = ((64, 1, 32, 8, 128), (4, 4096, 32, 8, 64), (4, 4096, 32, 8, 128))


def run(c):
    for sizes in SHAPES:
        one_shape(c, *sizes)


def one_shape(c, batch, time, heads, kv, dim):
    ops, liger = c.ops["rotary"], c.liger and c.liger.LigerRopeFunction.apply
    shape, moved = f"{batch}x{time}x{heads}/{kv}x{dim}", 2 * batch * time * (heads + kv) * dim * 2
    if not c.wants_some(("rotary", "rotary_", "rotary_bwd"), shape):
        return
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q = [t.transpose(1, 2) for t in randoms(batch, time, heads, dim)]
    k = [t.transpose(1, 2) for t in randoms(batch, time, kv, dim)]
    angle = torch.outer(torch.arange(time).float(), 5e5 ** (-torch.arange(0, dim, 2).float() / dim)).repeat(1, 2)[None]
    cos, sin = angle.cos().bfloat16().cuda(), angle.sin().bfloat16().cuda()
    plain = lambda q, k: apply_rotary_pos_emb(q, k, cos, sin)
    with torch.no_grad():
        fast = c.compiled(plain)
        c.run("rotary", shape, {
            "ours": lambda i: ops.rotary(q[i], k[i], cos, sin, dim, False),
            "transformers": lambda i: plain(q[i], k[i]),
            "torch.compile": lambda i: fast(q[i], k[i]),
        }, moved, "0.90 of copy",
           lambda: (ops.rotary(q[0], k[0], cos, sin, dim, False),
                    apply_rotary_pos_emb(*(t.double() for t in (q[0], k[0], cos, sin)))))  # fmt: skip
        turned = [(a.clone(), b.clone()) for a, b in zip(q, k, strict=True)]
        theirs = [(a.clone(), b.clone()) for a, b in zip(q, k, strict=True)]
        c.run("rotary_", shape, {
            "ours": lambda i: ops.rotary_(*turned[i], cos, sin, dim, False),
            "Liger": liger and (lambda i: liger(*theirs[i], cos, sin)),
        }, moved, "0.90 of copy")  # fmt: skip
    leaf = leaves_of(q, k)
    kept = lambda fn: backward_of([fn(*t) for t in leaf], leaf, list(zip(q, k, strict=True)))
    c.run("rotary_bwd", shape, {
        "ours": lambda i: ops.rotary_bwd(q[i], k[i], cos, sin, dim, False),
        "transformers": kept(plain),
        "torch.compile": kept(c.compiled(plain)),
    }, moved, "0.90 of copy")  # fmt: skip
