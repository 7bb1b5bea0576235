"""A Llama with random weights trained by FSDP2 over the GPUs of one host: transformers, Liger, and ours.

    NCCL_NVLS_ENABLE=0 python -m torch.distributed.run --standalone --nproc-per-node 2 bench/fsdp.py \\
        --packages build/packages [--model 1b --rows 4] [--csv bench/results.csv --date D --commit C]

bfloat16, AdamW, each rank with --rows x --columns tokens of its own. fully_shard goes around each decoder layer and
around the model, so the head and the embedding are one group; "head apart" puts the head and the last norm into a group
of their own, which Liger's loss cannot have: it reads the head's weight outside of the head. Every side is a process of
its own in each rank; all import side by side and take their turn: tokens/s of all ranks, the most memory that a rank held,
the first two steps' seconds, clock and power of the first rank's card and the mean losses, which must fall and agree with
stock's, of the first seven steps, before its rows are written, as they come. --profile FILE: every kernel of one more step
of the first rank. --tiny: a small one in float32 on CPUs over gloo, which times nothing of interest.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.gpu_model import (  # noqa: E402
    CHECKED, LLAMAS, MODELS, OURS, WARM, add_model_rows, arbitrary_ids, import_for, random_model, wait_for_turn, waiting_for_turns,
    write_kernels,
)  # fmt: skip
from bench.lib.results import add_flags  # noqa: E402

TINY = dict(vocab_size=512, hidden_size=64, head_dim=16, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=96, max_position_embeddings=128, dtype="float32")  # fmt: skip
SIDES = {  # name: (how the model is made, head apart)
    "transformers": ("plain", False),
    "transformers, head apart": ("plain", True),
    "transformers liger": ("liger", False),
    "transformers hotswap": ("hotswap", False),
    "transformers hotswap, head apart": ("hotswap", True),
    "transformers hotswap with attention": ("attention", False),
}
LIMIT = {"bfloat16": 5e-3, "float32": 1e-5}  # of the losses: bfloat16 rounds each weight after each step
LEARNING_RATE = {"bfloat16": 1e-5, "float32": 1e-3}
SECONDS = 240  # for a side


def train(args) -> dict | None:
    """This rank's part of one side; what it found, on rank 0."""
    import torch
    import torch.distributed as dist
    from bench.lib.gpu_meter import Meter
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig

    import_for(args.side)
    wait_for_turn()
    os.environ["MASTER_PORT"] = str(args.port)
    config = LlamaConfig(**MODELS[args.model][1] | (TINY if args.tiny else {}))
    dtype, rank = str(config.dtype).removeprefix("torch."), int(os.environ["RANK"])
    if args.tiny:
        device, sync, memory, clear = "cpu", lambda: None, lambda: 0, lambda: None
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    else:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=torch.device(device))
        sync, memory, meter = torch.cuda.synchronize, torch.cuda.max_memory_allocated, Meter()
        clear = torch.cuda.reset_peak_memory_stats
    model = random_model(config, args.side, device, config.dtype, checkpoint=MODELS[args.model][2])
    for layer in model.model.layers:
        fully_shard(layer)
    if args.head_apart:
        fully_shard([model.model.norm, model.lm_head])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE[dtype], fused=True)
    tokens = arbitrary_ids(args.rows, args.columns, config.vocab_size, device, first=rank * args.rows * args.columns)
    reduced = torch.zeros(2, device=device)
    dist.all_reduce(reduced)  # the connections are not the model's
    times, losses, load = [], [], ""

    def step():
        loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for i in range(WARM + args.repeats):
        clear()
        sync()
        dist.barrier()
        start = time.perf_counter()
        if i == WARM:
            began = start
        loss = step()
        sync()
        times.append(time.perf_counter() - start)
        dist.all_reduce(loss := loss.detach().float())
        losses.append(loss.item() / dist.get_world_size())
    if not args.tiny:
        load = "{:.0f} MHz {:.0f} W".format(*meter.between(began, time.perf_counter()))
    peak = torch.tensor(float(memory()), dtype=torch.float64, device=device)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if args.profile:
        apart = ", head apart" * args.head_apart
        step() if rank else write_kernels(args.profile, f"{args.model} {args.side}{apart}, FSDP2 on {dist.get_world_size()}", step)
    calls = {}
    if args.side in OURS:
        import hotswap

        calls = {op: n for op, n in hotswap.report(model).calls.items() if n}
    world = dist.get_world_size()
    dist.destroy_process_group()
    if rank:
        return None
    return {"value": world * tokens.numel() / statistics.median(times[WARM:]), "check": losses[:CHECKED], "calls": calls,
            "load": load, "first_steps": [round(t, 3) for t in times[:2]], "limit": LIMIT[dtype],
            "device_memory": {"peak": int(peak.item())}}  # fmt: skip


def command_of(args, index: int, kind: str, apart: bool) -> list[str]:
    """One side in a process of its own, with this rank's place and a port of its own to meet the others."""
    command = [sys.executable, __file__, "--packages", args.packages, "--model", args.model, "--side", kind]
    command += ["--rows", args.rows, "--columns", args.columns, "--repeats", args.repeats]
    command += ["--port", int(os.environ["MASTER_PORT"]) + 1 + index]
    command += ["--tiny"] * args.tiny + ["--head-apart"] * apart + (["--profile", args.profile] if args.profile else [])
    return [str(part) for part in command]


def outcome(process) -> dict | None:
    """Of a process whose turn it is."""
    try:
        printed, errors = process.communicate("\n", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, errors = process.communicate()
    if process.returncode:
        print(f"rank {os.environ['RANK']}: failed with {process.returncode}: {errors[-3000:]}", flush=True)
        return None
    return json.loads(printed.strip().splitlines()[-1])


def disagreements(results: dict) -> list[str]:
    found, want = [], results.get("transformers", {}).get("check")
    for name, out in results.items():
        got = out["check"]
        if not got[-1] < got[0]:
            found.append(f"{name}: expected losses that fall; got {got}")
        if want and not all(abs(a - b) <= out["limit"] * b for a, b in zip(got, want, strict=True)):
            found.append(f"{name}: expected losses within {out['limit']} of {want}; got {got}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--model", choices=LLAMAS, default="8b")
    parser.add_argument("--rows", type=int, default=2, help="of each rank")
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sides", type=lambda s: s.split(";"), default=list(SIDES), help="names, with ; between")
    add_flags(parser)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profile", type=Path, help="append the kernels of one more step of each side here")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--head-apart", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit("expected to be started by torch.distributed.run, as --help shows; got no RANK")
    if args.side:
        print(json.dumps(train(args)))
        return
    if unknown := set(args.sides) - set(SIDES):
        sys.exit(f"expected sides of {'; '.join(SIDES)}; got {'; '.join(unknown)}")
    results, first, world = {}, os.environ["RANK"] == "0", os.environ["WORLD_SIZE"]
    say = lambda text: print(text, flush=True) if first else None
    ours, peers = ([n for n in SIDES if ("hotswap" in n) == mine] for mine in (True, False))
    shape = f"{MODELS[args.model][0]} {args.rows}x{args.columns}, FSDP2 on {world}"
    commands = {}
    for index, name in enumerate(args.sides):
        kind, apart = SIDES[name]
        if apart and MODELS[args.model][1]["tie_word_embeddings"]:
            say(f"{name} is left out: this head is the embedding")
        elif kind == "liger" and (args.tiny or not importlib.util.find_spec("liger_kernel")):
            say(f"{name} is left out: {'no GPU' if args.tiny else f'no liger_kernel in {sys.executable}'}")
        else:
            commands[name] = command_of(args, index, kind, apart)
    environment = dict(os.environ, TORCHELASTIC_USE_AGENT_STORE="False", HF_HUB_OFFLINE="1", HOTSWAP_PACKAGES=str(args.packages.resolve()))
    for name, process in waiting_for_turns(commands, stderr=subprocess.PIPE, env=environment).items():
        if out := outcome(process):
            results[name] = out
            losses = " ".join(f"{loss:.4f}" for loss in out["check"])
            memory = f"peak {out['device_memory']['peak'] / 2**30:6.2f} GiB"
            extra = {key: out[key] for key in ("first_steps", "load", "calls") if out[key]}
            say(f"{name:34} {out['value']:9.0f} tokens/s  {memory}  losses {losses} {extra}")
            if first and (found := disagreements({n: results[n] for n in ("transformers", name) if n in results})):
                sys.exit("\n".join([*found, f"nothing is written of {name}"]))
            if first and not args.tiny:  # as it comes: the next side may not end
                pair = ([name], peers) if name in ours else (ours, [name])
                add_model_rows(args, results, *pair, what="forward+backward+AdamW", shape=shape)


if __name__ == "__main__":
    main()
