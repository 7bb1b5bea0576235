"""Run by test_training.py on two ranks: a few ways to train one model over both, and the same alone."""

import json
import sys

import torch
import torch.distributed as dist
import two_ranks
from test_training import STEPS
from tiny import Calls, model, pattern
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import hotswap


def whole(gradient):
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()


def train(m, rows):
    """Losses, the whole gradient of each parameter in the first and last step, and the calls."""
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
    losses, gradients = [], {}
    with Calls() as calls:
        for step in range(STEPS):
            data = pattern(rows=4, seed=step)  # as many targets on each rank
            loss = m(**{k: v[rows] for k, v in data.items()}).loss
            loss.backward()
            if step in (0, STEPS - 1):
                named = {n.removeprefix("module."): whole(p.grad) for n, p in m.named_parameters()}
                gradients |= {f"step {step} {n}": g for n, g in named.items()}
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return torch.stack(losses), gradients, calls.made | {f"own {op}": n for op, n in calls.own.items()}


def apart(got, want):
    """The largest relative difference of a gradient, and whose it is."""
    assert got.keys() == want.keys()
    return max((float((got[n] - g).norm() / g.norm()), n) for n, g in want.items())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,))
    mine = slice(2 * rank, 2 * rank + 2)
    if sys.argv[2] == "as on a GPU":
        hotswap.load("mlp").linked.DEVICES.add("cpu")
    result = {}

    def note(name, m, rows, tied=False):
        losses, gradients, calls = train(m, rows)
        if rows is mine:
            dist.all_reduce(losses)
            losses /= 2
        stock, want, _ = alone[tied]
        result[name] = (losses.tolist(), stock.tolist(), apart(gradients, want), calls)

    alone = {tied: train(model(tie_word_embeddings=tied).train(), slice(None)) for tied in (False, True)}

    ours = hotswap.kernelize(model().train(), fused_linear_cross_entropy=True)
    note("ddp", DistributedDataParallel(ours), mine)

    # The loss reads the head's weight: as one of the group around the model, and as one of a group of the head's own.
    for name, tied in (("fsdp2", False), ("fsdp2, head apart", False), ("fsdp2, head tied", True)):
        ours = hotswap.kernelize(model(tie_word_embeddings=tied).train(), fused_linear_cross_entropy=True)
        for layer in ours.model.layers:
            fully_shard(layer, mesh=mesh)
        if "apart" in name:
            fully_shard([ours.lm_head, ours.model.norm], mesh=mesh)
        fully_shard(ours, mesh=mesh)
        assert all(row.package or row.by_choice for row in hotswap.report(ours).rows)
        note(name, ours, mine, tied)

    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ours = hotswap.kernelize(model().train())
    for layer in ours.model.layers:
        plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
        parallelize_module(layer.mlp, mesh, plan)
        plan = {f"{name}_proj": ColwiseParallel() for name in "qkv"} | {"o_proj": RowwiseParallel()}
        parallelize_module(layer.self_attn, mesh, plan)
    note("tensor parallel", ours, slice(None))

    if rank == 0:
        with open(sys.argv[1], "w") as out:
            json.dump(result, out)
    two_ranks.leave()


if __name__ == "__main__":
    main()
