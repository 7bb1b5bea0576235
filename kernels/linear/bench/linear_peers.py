"""Products with packed weights on a GPU beside bfloat16's, and drawn tokens beside transformers' way; bench/peers.py runs it."""

import math

import torch
from bench.lib.gpu_common import SETS, randoms

# weights and bytes of a block, and where its float16 factors are
BLOCKS = {
    "q8_0": (32, 34, (0,)), "q4_0": (32, 18, (0,)), "q4_1": (32, 20, (0, 2)), "q5_0": (32, 22, (0,)),
    "q4_k": (256, 144, (0, 2)), "q5_k": (256, 176, (0, 2)), "q6_k": (256, 210, (208,)),
    "int4_g32": (32, 20, ()), "int4_g64": (64, 36, ()), "int4_g128": (128, 68, ()), "e4m3_g128": (128, 132, ()),
}  # fmt: skip
ARGMAX = "largest_"  # the op
FEW = (1, 4, 16)  # rows of a step of generation
BESIDE = (None, None, None, None, None, 0, 1)


SHAPES = ((4096, 4096), (28672, 4096), (128256, 4096))  # of Llama-8B: an attention's projection, gate and up, the head


def run(c):
    for out, cols in SHAPES:
        if any([c.wants("linear", f"{rows}x{cols}x{out}") or c.wants(ARGMAX, f"{rows}x{out}") for rows in FEW]):
            few_rows(c, out, cols)
    for out, cols in (*SHAPES, (4096, 14336)):
        wanted = [(packing, rows) for rows in (*FEW, 64) for packing in BLOCKS if c.wants(f"packed_linear_{packing}", f"{rows}x{cols}x{out}")]
        plain = [w / 64 for w in randoms(out, cols)] if wanted else []
        for packing, rows in wanted:
            packed(c, plain, packing, out, cols, rows)
        del plain
    for rows in (1, 64):
        for name, settings in (("temperature", (0.7, 0, 1.0)), ("top_k", (1.0, 20, 1.0)), ("top_p", (1.0, 0, 0.9))):
            sample(c, rows, name, *settings)


def few_rows(c, out, cols):
    ops, weights = c.ops["linear"], [w / 64 for w in randoms(out, cols)]
    plain, argmax = torch.nn.functional.linear, getattr(ops, ARGMAX)
    for rows in FEW:
        shape, x = f"{rows}x{cols}x{out}", randoms(rows, cols)
        c.run("linear", shape, {
            "ours": lambda i: ops.linear(x[i], weights[i], None),
            "torch": lambda i: plain(x[i], weights[i]),
        }, weights[0].nbytes, "0.90 of copy",
           lambda: ([ops.linear(x[0], weights[0], None)], [plain(x[0].double(), weights[0].double())]))  # fmt: skip
        logits, chosen = [plain(x[i], weights[i]) for i in range(SETS)], torch.empty(rows, dtype=torch.int64, device="cuda")

        def argmax_check():
            argmax(chosen, logits[0])
            return [logits[0].gather(1, chosen[:, None])], [logits[0].max(1, keepdim=True).values]

        c.run(ARGMAX, f"{rows}x{out}", {
            "ours": lambda i: argmax(chosen, logits[i]),
            "torch": lambda i: logits[i].argmax(-1),
        }, 0, "", argmax_check)  # fmt: skip


def blocks_of(packing, out, cols):
    weights, size, factors = BLOCKS[packing]
    made = torch.randint(0, 256, (out, cols // weights, size), dtype=torch.uint8, device="cuda")
    for at in factors:
        made[..., at : at + 2] = (torch.randn(out, cols // weights, 1, device="cuda") * 0.01).half().view(torch.uint8)
    if not factors:  # a float32 scale with the zero as its low byte
        made[..., :4] = (torch.randn(out, cols // weights, 1, device="cuda") * 0.01).half().float().view(torch.uint8)
        if packing.startswith("int4"):
            made[..., 0] = 8
        else:
            made[..., 4:] &= 0xFB  # no NaN
    return made.view(out, -1)


def packed(c, plain, packing, out, cols, rows):
    op, shape = f"packed_linear_{packing}", f"{rows}x{cols}x{out}"
    ops, x = c.ops["linear"], randoms(rows, cols)
    blocks = [blocks_of(packing, out, cols) for _ in range(SETS)]
    few = blocks[0][:512]

    def check():  # the op on an identity in float32 is the weight, which the package's own tests hold against the format
        parts = torch.eye(cols, device="cuda").split(1024)
        wide = torch.cat([ops.packed_linear(part, few, *BESIDE, packing, cols, None) for part in parts]).double()
        return [ops.packed_linear(x[0], few, *BESIDE, packing, cols, None)], [x[0].double() @ wide]

    c.run(op, shape, {
        "ours": lambda i: ops.packed_linear(x[i], blocks[i], *BESIDE, packing, cols, None),
        "ours, a bfloat16 weight": lambda i: ops.linear(x[i], plain[i], None),
        "torch; a bfloat16 weight": lambda i: torch.nn.functional.linear(x[i], plain[i]),
    }, blocks[0].nbytes, "", check)  # fmt: skip


def sample(c, rows, name, temperature, top_k, top_p):
    shape = f"{rows}x151936 {name}"
    if not c.wants("sample", shape):
        return
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    ops, logits = c.ops["linear"], [4 * z for z in randoms(rows, 151936)]
    row = [1 / temperature, top_k, top_p, -math.inf, 0.3]
    settings = torch.tensor([row] * rows, dtype=torch.float64, device="cuda")
    warpers = [TemperatureLogitsWarper(temperature)]
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))

    def stock(i):
        scores = logits[i].float()
        for warper in warpers:
            scores = warper(None, scores)
        return torch.multinomial(scores.softmax(-1), 1)

    c.run("sample", shape, {"ours": lambda i: ops.sample(logits[i], settings), "transformers": stock}, 2 * logits[0].numel() * 2)
