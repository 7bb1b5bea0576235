#!/usr/bin/env bash
# torch 2.11.0 on a CPU: sigmoid, silu and softplus of an element have other last bits where it is among the last ones of
# a tensor, which fill no vector: those are computed one by one, by another formula. tanh, exp and gelu have the same.
# Natural guess: a function of each element gives equal elements equal bits, wherever they stand; a row of 4 experts then
# has the same scores by itself and among other rows.
# Seen (float32, 4096 rows of 64, of which the first four columns by themselves again): sigmoid 668, silu 696, softplus
# 1754 of 16384 elements with other bits; tanh, exp, gelu none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.11.0 numpy
cat >"$folder/bits.py" <<'PY'
import torch
from torch.nn import functional

x = 3 * torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))


def differ(function):
    single = torch.stack([function(row[:4].clone()) for row in x])
    return int((function(x)[:, :4] != single).sum())


seen = {f.__name__: differ(f) for f in (torch.sigmoid, functional.silu, functional.softplus, torch.tanh, torch.exp, functional.gelu)}
print(torch.backends.cpu.get_cpu_capability(), seen)
assert min(seen[name] for name in ("sigmoid", "silu", "softplus")) > 0
assert seen["tanh"] == seen["exp"] == seen["gelu"] == 0
PY
"$folder/venv/bin/python" "$folder/bits.py"
