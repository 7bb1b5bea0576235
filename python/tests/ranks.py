"""Run by test_training.py on two ranks: a few ways to train one model over both, and the same alone."""

import json
import sys

import torch
import torch.distributed as dist
from test_training import STEPS
from tiny import Calls, model, pattern
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hotswap


def train(m, parameters, rows):
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    with Calls() as calls:
        for step in range(STEPS):
            data = pattern(rows=4, seed=step)  # as many targets on each rank
            loss = m(**{k: v[rows] for k, v in data.items()}).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return torch.stack(losses), calls.made


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,))
    mine = slice(2 * rank, 2 * rank + 2)
    result = {}

    def note(name, losses, calls, mean=True):
        if mean:
            dist.all_reduce(losses)
            losses /= 2
        result[name] = (losses.tolist(), calls)

    alone = model().train()
    losses, _ = train(alone, alone.parameters(), slice(None))
    result["stock alone"] = losses.tolist()

    ours = hotswap.kernelize(model().train(), fused_linear_cross_entropy=True)
    ddp = DistributedDataParallel(ours)
    note("ddp", *train(ddp, ddp.parameters(), mine))

    ours = hotswap.kernelize(model().train(), fused_linear_cross_entropy=True)
    for layer in ours.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard([ours.lm_head, ours.model.norm], mesh=mesh)
    fully_shard(ours, mesh=mesh)
    note("fsdp2", *train(ours, ours.parameters(), mine))

    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ours = hotswap.kernelize(model().train())
    for layer in ours.model.layers:
        plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
        parallelize_module(layer.mlp, mesh, plan)
        plan = {f"{name}_proj": ColwiseParallel() for name in "qkv"} | {"o_proj": RowwiseParallel()}
        parallelize_module(layer.self_attn, mesh, plan)
    note("tensor parallel", *train(ours, ours.parameters(), slice(None)), mean=False)

    if rank == 0:
        with open(sys.argv[1], "w") as out:
            json.dump(result, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
