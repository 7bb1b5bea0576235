"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

import torch

WIDE = r"few_rows_kernel<.*BFloat16, 8, "
WIDER = False
STORES_FEW = True
CPU_ONLY = ("decoder_layer_rows", "decoder_layer_packed_rows")  # looks at no number: a graph has nothing of it
SPILLS = {  # of 64 registers, which leave room for the next launch beside it: two; where x of 16 rows is held, some more
    r"few_rows_kernel<.*, 16, ": 16,
    r"few_rows_held_kernel<": 72,
    r"packed_rows_kernel<.*, 2, false": 16,
    r"attend_tiles_kernel<.*, 128, ": 52,  # of 128, for the same reason
}


def cases(ops, random, names):
    device = random(1).device

    def layer(rows, hidden, heads, kv_heads, dim, ffn, position, old=False, by_row=False):
        x, norm, post_norm = random(rows, 1, hidden), random(hidden), random(hidden)
        q, k, v = (random(n * dim, hidden) * hidden**-0.5 for n in (heads, kv_heads, kv_heads))
        o, gate, up = random(hidden, heads * dim) * 0.02, random(ffn, hidden) * 0.03, random(ffn, hidden) * 0.03
        down, cos, sin = random(hidden, ffn) * 0.02, random(1, 1, dim), random(1, 1, dim)
        caches = [random(rows, kv_heads, position + 3, dim).transpose(1, 2) for _ in range(2)]
        at = torch.full((1,), position, device=x.device)
        if by_row:
            at = torch.arange(rows, device=x.device) * position // max(rows - 1, 1)
            cos, sin = random(rows, 1, dim), random(rows, 1, dim)
        return lambda: ops.decoder_layer(
            x, norm, q, None, k, None, v, None, None, None, cos, sin, *caches, at, o, None, post_norm, gate, None, up, None, down,
            None, 1e-6, 1e-6, dim**-0.5, -1, "silu", old,
        )  # fmt: skip

    def packed(rows, old):
        hidden, ffn, dim = 1024, 3072, 128

        def blocks(out, cols, size, factors):
            made = torch.randint(0, 256, (out, cols // 256, size), dtype=torch.uint8, device=device)
            made.view(torch.int16).view(out, cols // 256, size // 2)[..., factors] = 0x0C00  # 2^-12
            return made.view(out, -1)

        q4, q6 = (144, [0, 1]), (210, [104])
        q, k, v = blocks(16 * dim, hidden, *q4), blocks(8 * dim, hidden, *q4), blocks(8 * dim, hidden, *q6)
        o, gate, up = blocks(hidden, 16 * dim, *q4), blocks(ffn, hidden, *q4), blocks(ffn, hidden, *q4)
        down, cos, sin = blocks(hidden, ffn, *q6), random(1, 1, dim), random(1, 1, dim)
        x, norm, at = random(rows, 1, hidden), random(hidden), torch.full((1,), 60, device=device)
        caches = [random(rows, 8, 70, dim).transpose(1, 2) for _ in range(2)]
        return lambda: ops.decoder_layer_packed(
            x, norm, q, None, k, None, v, None, None, None, cos, sin, *caches, at, o, None, norm, gate, None, up, None, down,
            None, 1e-6, 1e-6, dim**-0.5, -1, "silu", "q4_k,q4_k,q6_k,q4_k,q4_k,q4_k,q6_k", old,
        )  # fmt: skip

    ids, length = torch.tensor([[3], [0], [1000]], device=device), torch.full((1,), 575, device=device)
    embedding, rope = random(1001, 1024), random(600, 256)

    def inputs():
        made = ops.decoder_inputs(ids, embedding, rope, length)
        length.sub_(1)
        return made

    def heads(rows, count, kv_heads, dim):
        joint = random(rows, 1, (count + 2 * kv_heads) * dim)
        q, k, v = joint.split([count * dim, kv_heads * dim, kv_heads * dim], -1)
        norm, cos, sin = random(dim), random(rows, 1, dim), random(rows, 1, dim)
        caches, at = [random(rows, kv_heads, 70, dim).transpose(1, 2) for _ in range(2)], torch.arange(rows, device=device)
        return lambda: ops.decoder_heads(q, k, v, norm, norm, cos, sin, *caches, at, 1e-6)

    return {
        "decoder_heads, 64 rows": heads(64, 16, 8, 128),
        "decoder_heads, heads of 64": heads(5, 9, 3, 64),
        "decoder_inputs": inputs,
        "decoder_layer": layer(1, 1024, 16, 8, 128, 3072, 575),
        "decoder_layer, old weights": layer(1, 1024, 16, 8, 128, 3072, 575, True),
        "decoder_layer, 16 rows": layer(16, 1024, 16, 8, 128, 3072, 300),
        "decoder_layer, 16 rows at their own positions": layer(16, 1024, 16, 8, 128, 3072, 300, by_row=True),
        "decoder_layer, 3 rows at their own positions": layer(3, 1024, 16, 8, 128, 3072, 300, by_row=True),
        "decoder_layer_packed": packed(1, False),
        "decoder_layer_packed, 4 rows, old weights": packed(4, True),
        "decoder_layer, 5 rows": layer(5, 576, 9, 3, 64, 1536, 40),
    }


def large(ops, x, random):
    return {}  # 16 rows at most
