"""Run by test_training.py on two ranks: DeepSpeed's ZeRO 1, 2 and 3 on the CPU, stock and swapped; a Llama, and with 2 and 3 one with
peft's adapters and a Mixtral, too."""

import json
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from test_training import STEPS
from tiny import Calls, model, pattern

import hotswap


def train(stage, swap, kind):
    m = model("mixtral" if kind == "mixtral" else "llama").train()
    if swap:
        hotswap.kernelize(m, fused_linear_cross_entropy=kind == "llama")
    if kind == "adapters":
        import peft

        torch.manual_seed(5)
        m = peft.get_peft_model(m, peft.LoraConfig(r=4, target_modules=["q_proj", "gate_proj", "down_proj"], init_lora_weights=False))
    config = {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2)
    engine, *_ = deepspeed.initialize(model=m, optimizer=optimizer, config=config)
    rows = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    losses = []
    with Calls() as calls:
        for step in range(STEPS):
            loss = engine(**{k: v[rows] for k, v in pattern(rows=4, seed=step).items()}).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach().float())
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    return (losses / 2).tolist(), calls.made


def main():
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    cases = [("llama", 1)] + [(kind, stage) for kind in ("llama", "adapters", "mixtral") for stage in (2, 3)]
    result = {f"{kind} {stage}": [train(stage, swap, kind) for swap in (False, True)] for kind, stage in cases}
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as out:
            json.dump(result, out)


if __name__ == "__main__":
    main()
