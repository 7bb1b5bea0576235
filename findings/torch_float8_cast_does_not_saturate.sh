#!/usr/bin/env bash
# torch 2.11.0: a cast to float8_e4m3fn does not saturate. Values up to 464 (halfway to what would be the next number)
# become the maximum, 448; beyond that, and for infinity, NaN, since the format has no infinity. float8_e5m2, which
# has one, becomes infinity. ONNX's Cast saturates by default, and so does CUDA's __nv_fp8_e4m3(float).
# Natural guess: what is too large becomes 448, as quantisers that do not clamp expect; one large element is a NaN row.
# Seen: 464 -> 448, 465 -> nan; e5m2: 61439 -> 57344, 61440 -> inf.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.11.0 numpy
"$folder/venv/bin/python" - <<'PY'
import torch

def through(dtype, *values):
    return torch.tensor(values).to(dtype).float().tolist()

seen = (through(torch.float8_e4m3fn, 448, 464, 465, 1e4), through(torch.float8_e5m2, 57344, 61439, 61440))
print(*seen)
assert str(seen) == "([448.0, 448.0, nan, nan], [57344.0, 57344.0, inf])", seen
PY
