"""A whole mixture of experts with random weights on a GPU, transformers' own and with our kernels: a training step, and generation.

    PYTHONPATH=python HOTSWAP_PACKAGES=build/packages python bench/moe_model.py [--hotswap build/bin/hotswap] [--csv FILE]

Four layers in the shape of Qwen3-30B-A3B, bfloat16, the same random weights for all sides of transformers: stock; "hotswap", every
layer and the loss without logits; "attention", that and the attention; both generate by transformers' loop, and "generate" is
hotswap.generate over the former. A step is forward and backward of --train rows, no optimizer; generation goes on from a prompt
of --prompt tokens at each of --batch, and draws from the whole vocabulary: greedy, random weights say one token over and over,
and all rows go to the same few experts. The losses of the sides must agree. With --hotswap the C++ host beside it, whose random
weights are others, and whose benchmark generates greedily: that is beside nobody.
"""

import argparse
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from gpu_model import BF16_LOSS, QWEN3_MOE, WARM
from results import Results, add_flags, gpu

import hotswap

NAME = "Qwen3-30B-A3B, 4 layers"
SIDES = {"transformers": None, "hotswap": {}, "attention": {"attention": True}}  # what kernelize is asked for


def seconds(call) -> tuple:
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def arbitrary_ids(rows: int, columns: int):
    """As hotswap/cli/bench/model.cpp has them."""
    ids = torch.arange(rows * columns, device="cuda") * 7919 + 104729
    return (ids % QWEN3_MOE["vocab_size"]).view(rows, columns)


def fresh() -> None:
    gc.collect(), torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def trained(m, args) -> dict:
    rows, columns = args.train
    ids, shape, losses = arbitrary_ids(rows, columns), f"{rows}x{columns}", []

    def step():
        m.zero_grad(set_to_none=True)
        loss = m(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss.detach()

    fresh()
    m.train()
    times = []
    for _ in range(WARM + args.turns):
        took, loss = seconds(step)
        times.append(took), losses.append(loss.item())
    m.zero_grad(set_to_none=True)
    print(f"  {shape}: {rows * columns / statistics.median(times[WARM:]):.0f} tokens/s, losses {losses}", flush=True)
    found = {("training step", shape): rows * columns / statistics.median(times[WARM:])}
    return found | {("training, peak memory", shape): torch.cuda.max_memory_allocated(), "losses": losses}


def generated(m, say, args) -> dict:
    m.eval()
    found = {}
    for rows in args.batch:
        ids = arbitrary_ids(rows, args.prompt)
        options = dict(do_sample=True, top_k=0, eos_token_id=None, pad_token_id=0, attention_mask=torch.ones_like(ids))
        torch.manual_seed(1)
        generate = lambda count: seconds(lambda: say(ids, max_new_tokens=count, **options))
        fresh()
        generate(2)
        rates = []
        for _ in range(args.turns):
            first, (whole, out) = generate(1)[0], generate(args.tokens)
            rates.append(rows * (args.tokens - 1) / (whole - first))
        shape = f"{rows}x{args.prompt}+{args.tokens}"
        found["generation", shape] = statistics.median(rates)
        found["generation, peak memory", shape] = torch.cuda.max_memory_allocated()
        print(f"  {shape}: {found['generation', shape]:.1f} tokens/s, ids {out[0, args.prompt :][:8].tolist()}", flush=True)
    return found


def in_python(args) -> dict:
    seen = {}
    for name, options in SIDES.items():
        torch.manual_seed(0)
        with torch.device("cuda"):
            config = transformers.AutoConfig.for_model(**QWEN3_MOE)
            m = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        if options is not None:
            hotswap.kernelize(m, fused_linear_cross_entropy=True, **options)
        print(name, flush=True)
        seen[name] = trained(m, args) | generated(m, m.generate, args)
        if options is not None:
            print({op: n for op, n in hotswap.report(m).calls.items() if n})
        if name == "hotswap":
            print("generate", flush=True)
            seen["generate"] = generated(m, functools.partial(hotswap.generate, m), args)
        del m
        fresh()
    return seen


def host(args, kernels: bool) -> dict:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(QWEN3_MOE))
        start = [args.hotswap.resolve(), "bench", "model", "--device", "cuda", "--random-weights", "--model", folder, "--repeats", args.turns]
        start += ["--use-kernels"] * kernels

        def run(*more):
            done = subprocess.run([str(s) for s in (*start, *more)], capture_output=True, text=True)
            if done.returncode:
                print(f"{more}, kernels {kernels}: failed with {done.returncode}: {done.stderr[:600]}")
                return None
            return json.loads(done.stdout.strip().splitlines()[-1])

        rows, columns = args.train
        if out := run("--what", "step", "--rows", rows, "--columns", columns):
            found["training step", f"{rows}x{columns}"] = out["value"]
            found["training, peak memory", f"{rows}x{columns}"] = out["device_memory"]["peak"]
            found["losses"] = out["check"]
            print(f"  C++ host, kernels {kernels}, training step: {out['value']:.0f} tokens/s, bound {out.get('bound')}", flush=True)
        for rows in args.batch if kernels else ():
            if out := run("--what", "decode", "--rows", rows, "--columns", args.prompt, "--new-tokens", args.tokens):
                found["generation", f"{rows}x{args.prompt}+{args.tokens} greedy"] = out["value"]
                print(f"  C++ host, kernels {kernels}, {rows} rows: captured {out.get('captured')}, ids {out['check'][:8]}", flush=True)
    return found


def write(args, seen: dict, pairs: list) -> None:
    """Rows of each pair where both have a number, and of what has no peer."""
    report, losses = Results(args, gpu()), {name: found.pop("losses") for name, found in seen.items() if "losses" in found}
    for ours, peer in pairs:
        if ours in losses and peer in losses:
            apart = max(abs(a - b) for a, b in zip(losses[ours], losses[peer], strict=True))
            if not apart <= BF16_LOSS:
                sys.exit(f"wanted losses of {ours} and {peer} within {BF16_LOSS}; got {apart}; nothing is written")
        for (what, shape), value in seen[ours].items():
            other = seen[peer].get((what, shape))
            beside = dict(peer=other, peer_name=peer) if other is not None else {}
            report.add(
                kind="model", what=f"{what}, {ours}", shape=f"{NAME} {shape}", dtype="bfloat16", ours=value,
                unit="bytes" if "memory" in what else "tokens/s", **beside,
            )  # fmt: skip
    report.write()


def main() -> None:
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=lambda s: [int(n) for n in s.split("x")], default=[4, 4096], help="rows x columns")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--batch", type=numbers, default=[1, 16], help="of generation")
    parser.add_argument("--tokens", type=int, default=64, help="of generation")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--hotswap", type=Path, help="the C++ host")
    add_flags(parser)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    seen = in_python(args)
    write(args, seen, [(ours, "transformers") for ours in ("hotswap", "attention", "generate")])
    if args.hotswap:
        hosts = {"C++ host": host(args, True), "C++ host, stock": host(args, False)}
        write(args, hosts, [("C++ host", "C++ host, stock")])


if __name__ == "__main__":
    main()
