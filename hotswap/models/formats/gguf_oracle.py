"""Writes OUT/types.gguf by llama.cpp's own writer, a tensor of random bytes for each block type that it can dequantise,
and OUT/TYPE.f32, what its dequantiser makes of them."""

import secrets
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize

out = Path(sys.argv[1])
seed = secrets.randbits(32)
print("seed", seed)
random = np.random.default_rng(seed)
writer = gguf.GGUFWriter(out / "types.gguf", "llama")
for kind in gguf.GGMLQuantizationType:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if block == 1:
        continue
    raw = random.integers(0, 256, (7, 3 * size), dtype=np.uint8)
    with np.errstate(all="ignore"):  # scales that are infinite or not a number
        try:
            values = dequantize(raw, kind)
        except NotImplementedError:
            continue
    writer.add_tensor(kind.name, raw, raw_dtype=kind)
    values.astype(np.float32).tofile(out / f"{kind.name}.f32")
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
