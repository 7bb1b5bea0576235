#!/usr/bin/env bash
# accelerate 1.15.0 on a CPU: a plugin of FSDP (fsdp_plugin, ACCELERATE_USE_FSDP, so the fsdp argument of transformers' Trainer, too) is
# dropped without a word. Two processes are MULTI_CPU, the model is wrapped by DistributedDataParallel, and every rank keeps all weights.
# torch's fully_shard itself runs on a CPU over Gloo.
# Natural guess: what was requested is done, or is an error; a test of FSDP on a CPU tests it.
# Seen: distributed type MULTI_CPU, wrapper DistributedDataParallel, 0 sharded parameters of 2; by fully_shard 2 of 2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.11.0 accelerate==1.15.0
cat >"$folder/run.py" <<'PY'
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

def sharded(model):
    return sum(isinstance(p, DTensor) for p in model.parameters())

accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
model = torch.nn.Linear(4, 4)
wrapped, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
seen = accelerator.distributed_type.value, type(wrapped).__name__, sharded(wrapped), sharded(fully_shard(torch.nn.Linear(4, 4)))
if accelerator.is_main_process:
    print(seen)
assert seen == ("MULTI_CPU", "DistributedDataParallel", 0, 2), seen
PY
CUDA_VISIBLE_DEVICES='' "$folder/venv/bin/python" -W ignore -m torch.distributed.run --standalone --nproc-per-node=2 "$folder/run.py"
