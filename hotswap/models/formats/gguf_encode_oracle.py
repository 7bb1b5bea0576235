"""Random weights of several spreads, and what llama.cpp's Python package quantises them to, for each type that it has
a quantiser of and that is written here: OUT/KIND.from.f32 and OUT/KIND.theirs.f32, which is dequantised again."""

import secrets
import sys
from pathlib import Path

import gguf
import numpy as np

out = Path(sys.argv[1])
seed = secrets.randbits(32)
print("seed", seed)
random = np.random.default_rng(seed)
normal = random.standard_normal((40, 256))
weights = np.concatenate([
    normal, normal * 0.02, random.standard_t(3, (40, 256)) * 0.02, random.uniform(0.5, 0.6, (40, 256)),
    -np.abs(normal), normal * 1e-5, normal * 3e-7, np.where(random.random((40, 256)) < 0.02, normal * 10, normal * 0.01),
    np.zeros((1, 256)), np.full((1, 256), 0.37), np.full((1, 256), -0.37),
]).astype(np.float32)  # fmt: skip
for name in ("Q8_0", "Q5_0", "Q5_1"):
    kind = gguf.GGMLQuantizationType[name]
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(gguf.quants.quantize(weights, kind), kind)
    weights.tofile(out / f"{name}.from.f32")
    theirs.astype(np.float32).tofile(out / f"{name}.theirs.f32")
