#!/usr/bin/env bash
# torch 2.11.0 on a CPU without AVX-512: scaled_dot_product_attention of a row has other bits in a batch than by itself,
# with two threads or more. Each thread keeps its products in a part of one buffer, and the parts begin at any multiple
# of 4 bytes. MKL's sgemm adds up in another order where its *output* begins off a multiple of 16 bytes; where its inputs
# begin changed nothing in these shapes. MKL_CBWR=AVX2 (or COMPATIBLE) takes the difference away.
# Natural guess: rows of a batch are independent, so a row's bits are its own; or that inputs' alignment decides.
# Seen (AMD EPYC, AVX2): 3x64 by 64x33, output 4 to 60 bytes past a multiple of 64: other bits but at 16, 32 and 48.
# Two rows over 1 to 119 keys: with one thread other bits at no length, with two at 56. With AVX-512 it was not run.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.11.0 numpy
cat >"$folder/bits.py" <<'PY'
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention as attention

generator = torch.Generator().manual_seed(1)
random = lambda *shape: torch.randn(*shape, generator=generator)


def placed(t, floats):
    room = torch.empty(t.numel() + 16)
    return room[floats : floats + t.numel()].view(t.shape).copy_(t)


a, b = random(3, 64), random(64, 33)
product, inputs, outputs = a @ b, [], []
for floats in range(16):
    out = placed(product, floats)
    torch.mm(a, b, out=out)
    inputs += [floats] * (not torch.equal(placed(a, floats) @ placed(b, floats), product))
    outputs += [floats] * (not torch.equal(out, product))

lengths = {1: 0, 2: 0}
for threads in lengths:
    torch.set_num_threads(threads)
    for length in range(1, 120):
        q, k, v = random(2, 2, 2, 8), random(2, 2, length, 8), random(2, 2, length, 8)
        one = torch.cat([attention(q[i : i + 1], k[i : i + 1], v[i : i + 1]) for i in range(2)])
        lengths[threads] += not torch.equal(attention(q, k, v), one)
print(torch.backends.cpu.get_cpu_capability(), inputs, outputs, lengths)
if "AVX512" not in torch.backends.cpu.get_cpu_capability():
    follows = sys.argv[1] == "follows"
    assert not inputs and bool(outputs) == follows and lengths[1] == 0 and bool(lengths[2]) == follows
PY
"$folder/venv/bin/python" "$folder/bits.py" follows
MKL_CBWR=AVX2 "$folder/venv/bin/python" "$folder/bits.py" fixed
