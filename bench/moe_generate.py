"""What a token of a mixture of experts takes in transformers' own loop on a GPU, and how much of it is torch's attention.

    HOTSWAP_PACKAGES=build/packages python -m bench moe_generate [--traces FOLDER] [--csv FILE]

The model of bench/moe_model.py in one process; each side is bound to it in turn and generates --tokens tokens --turns times, at each
of --batch. On Hopper torch prefers cuDNN for its attention, and cuDNN builds a plan for each new length of the keys (and each layout
of its inputs): a side's first turn, over lengths that are its own, pays for them, the others find them. Sides:

    transformers, hotswap, attention   as in bench/moe_model.py
    flash, hotswap flash               the first two where torch may not take cuDNN
    hotswap restrided                  q with the strides that transformers' own rotary embedding leaves, which for one token are others

Then, over known lengths, torch's profiler says what eight tokens take, by op: on the host and on the GPU.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.gpu_model import QWEN3_MOE, arbitrary_ids  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402
from bench.moe_model import NAME  # noqa: E402

SIDES = ("transformers", "hotswap", "hotswap restrided", "flash", "hotswap flash", "attention")
STOCK = ("transformers", "flash")
SMALL = dict(vocab_size=97, hidden_size=64, num_attention_heads=8, head_dim=16, intermediate_size=48, moe_intermediate_size=16)
PROFILED = 8
torch_attention = F.scaled_dot_product_attention


def restrided(q, *args, **kwargs):
    """One token's q [batch, heads, 1, dim]: the stride of the third dimension means nothing, and is part of cuDNN's question."""
    if q.shape[2] == 1:
        q = q.as_strided(q.shape, (q.stride(0), q.stride(1), q.shape[3], 1), q.storage_offset())
    return torch_attention(q, *args, **kwargs)


def bind(model, side: str) -> None:
    import hotswap

    hotswap.unkernelize(model)
    if side not in STOCK:
        hotswap.kernelize(model, attention=side == "attention")
    torch.backends.cuda.enable_cudnn_sdp("flash" not in side)
    F.scaled_dot_product_attention = restrided if "restrided" in side else torch_attention


def profiled(call, args, name: str) -> None:
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if args.device == "cuda" else [])]
    with torch.profiler.profile(activities=kinds) as profile:
        call()
    found = profile.key_averages()
    sums = [sum(e.self_cpu_time_total for e in found), sum(e.self_device_time_total for e in found)]
    print(f"-- {name}: {PROFILED} tokens and their prompt, us by op; in all cpu {sums[0]:.0f}, device {sums[1]:.0f}")
    for where in ("cpu", *(["device"] if args.device == "cuda" else [])):
        took = lambda e: getattr(e, f"self_{where}_time_total")
        for e in sorted(found, key=took, reverse=True)[: args.rows]:
            print(f"  {where:6} {took(e):9.0f} {e.count:6} x {e.key[:100]}")
    if args.traces:
        args.traces.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(args.traces / f"{name.replace(' ', '_').replace(',', '')}.json.gz"))


def main() -> None:
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--batch", type=numbers, default=[1, 16])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--sides", type=lambda text: text.split(","), default=list(SIDES))
    parser.add_argument("--rows", type=int, default=14, help="of each table")
    parser.add_argument("--traces", type=Path, help="chrome://tracing of what was profiled, into this folder")
    parser.add_argument("--device", default="cuda", help="cpu: a narrow model, to see that all of it runs")
    add_flags(parser)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    torch.manual_seed(0)
    on_gpu = args.device == "cuda"
    with torch.device(args.device):
        config = transformers.AutoConfig.for_model(**QWEN3_MOE | ({} if on_gpu else SMALL))
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    sync = torch.cuda.synchronize if on_gpu else lambda: None
    rates = {}

    def took(side, rows, count):
        ids = arbitrary_ids(rows, args.prompt + 32 * args.sides.index(side), config.vocab_size, args.device)
        options = dict(do_sample=True, top_k=0, eos_token_id=None, pad_token_id=0, attention_mask=torch.ones_like(ids))
        sync()
        start = time.perf_counter()
        model.generate(ids, max_new_tokens=count, **options)
        sync()
        return time.perf_counter() - start

    for side in args.sides:
        bind(model, side)
        for rows in args.batch:
            took(side, rows, 1)
            seen = []
            for _ in range(args.turns):
                first = took(side, rows, 1)
                seen.append(rows * (args.tokens - 1) / (took(side, rows, args.tokens) - first))
            rates[side, rows] = seen[0], statistics.median(seen[1:] or seen)
            print(f"{side}, batch {rows}: tokens/s of each turn {[round(r, 1) for r in seen]}", flush=True)
            report = Results(args, gpu() if on_gpu else None)
            for kind, rate, peer in zip(("new", "known"), rates[side, rows], rates.get(("transformers", rows), ("", ""))):
                beside = dict(peer=peer, peer_name="transformers") if side != "transformers" and peer else {}
                shape = f"{NAME} {rows}x{args.prompt}+{args.tokens}"
                report.add(kind="model", what=f"generation, {kind} lengths, {side}", shape=shape, dtype="bfloat16", ours=rate, unit="tokens/s", **beside)
            report.write()
    for side in args.sides:
        bind(model, side)
        for rows in args.batch:
            profiled(lambda: took(side, rows, PROFILED), args, f"{side}, batch {rows}")


if __name__ == "__main__":
    main()
