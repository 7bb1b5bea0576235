"""Rotary embeddings on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

import torch
from bench.lib.gpu_common import randoms


def run(c):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    if not c.wants("rotary"):
        return
    ops, batch, time, heads, kv, dim = c.ops["rotary"], 4, 4096, 32, 8, 128
    shape, moved = f"{batch}x{time}x{heads}/{kv}x{dim}", 2 * batch * time * (heads + kv) * dim * 2
    q = [t.transpose(1, 2) for t in randoms(batch, time, heads, dim)]
    k = [t.transpose(1, 2) for t in randoms(batch, time, kv, dim)]
    angle = torch.outer(torch.arange(time).float(), 5e5 ** (-torch.arange(0, dim, 2).float() / dim)).repeat(1, 2)[None]
    cos, sin = angle.cos().bfloat16().cuda(), angle.sin().bfloat16().cuda()
    with torch.no_grad():
        fast = c.compiled(apply_rotary_pos_emb)
        c.run("rotary", shape, {
            "ours": lambda i: ops.rotary(q[i], k[i], cos, sin, dim, False),
            "transformers": lambda i: apply_rotary_pos_emb(q[i], k[i], cos, sin),
            "torch.compile": lambda i: fast(q[i], k[i], cos, sin),
        }, moved, "85 us",
           lambda: (ops.rotary(q[0], k[0], cos, sin, dim, False),
                    apply_rotary_pos_emb(*(t.double() for t in (q[0], k[0], cos, sin)))))  # fmt: skip
        c.run("rotary_bwd", shape, {"ours": lambda i: ops.rotary_bwd(q[i], k[i], cos, sin, dim, False)}, moved, "85 us")
        q2, k2 = [t.clone() for t in q], [t.clone() for t in k]
        liger = c.liger and c.liger.LigerRopeFunction
        c.run("rotary_", shape, {
            "ours": lambda i: ops.rotary_(q2[i], k2[i], cos, sin, dim, False),
            "Liger": liger and (lambda i: liger.apply(q[i], k[i], cos, sin)),
        }, moved, "83 us")  # fmt: skip
