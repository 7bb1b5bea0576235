"""Run by test_training.py on two ranks: DDP and FSDP2 of a tiny Llama and a tiny Mixtral, all weights and peft's adapters, stock and
swapped. A mixture's auxiliary loss is of each rank's own rows, so stock runs on two ranks, too.

    ranks_same.py OUT.json
"""

import json
import sys

import torch
import torch.distributed as dist
import two_ranks
from tiny import Calls, model, pattern
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import hotswap

STEPS = 8
TARGETS = {"llama": ["q_proj", "o_proj", "gate_proj", "down_proj"], "mixtral": ["q_proj", "o_proj"]}


def made(family, swap, adapters):
    m = model(family).train()
    if swap:
        hotswap.kernelize(m)
    if adapters:
        import peft

        torch.manual_seed(5)
        m = peft.get_peft_model(m, peft.LoraConfig(r=4, target_modules=TARGETS[family], init_lora_weights=False))
        if swap:
            hotswap.kernelize(m)  # the adapters, too
    return m


def base(m):
    return m.get_base_model() if hasattr(m, "get_base_model") else m


def wrapped(m, way, mesh):
    if way == "ddp":
        return DistributedDataParallel(m)
    for layer in base(m).model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(m, mesh=mesh)


def whole_norm(m):
    """Of the gradients of all parameters."""
    grads = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in m.parameters() if p.grad is not None]
    return torch.stack([g.norm() for g in grads]).norm()


def train(m, mine):
    """Each step's loss and norm of the gradients, as means over the ranks, and our calls."""
    optimizer = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2)
    seen = []
    with Calls() as calls:
        for step in range(STEPS):
            loss = m(**{k: v[mine] for k, v in pattern(rows=4, seed=step).items()}).loss
            loss.backward()
            seen.append(torch.stack([loss.detach(), whole_norm(m)]))
            optimizer.step()
            optimizer.zero_grad()
    seen = torch.stack(seen)
    dist.all_reduce(seen)
    return dict(losses=(seen[:, 0] / 2).tolist(), norms=(seen[:, 1] / 2).tolist(), calls=calls.made)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh, rank = init_device_mesh("cpu", (2,)), dist.get_rank()
    mine = slice(2 * rank, 2 * rank + 2)
    result = {}
    for family in TARGETS:
        for adapters in (False, True):
            for way in ("ddp", "fsdp2"):
                runs = [train(wrapped(made(family, swap, adapters), way, mesh), mine) for swap in (False, True)]
                result[f"{family}{'+lora' if adapters else ''} {way}"] = runs
    if rank == 0:
        with open(sys.argv[1], "w") as out:
            json.dump(result, out)
    two_ranks.leave()


if __name__ == "__main__":
    main()
