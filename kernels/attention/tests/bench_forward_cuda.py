"""Attention forward on a GPU beside torch's cuDNN and flash backends and a large matrix product, in turns.

    bench_forward_cuda.py --library ours=attention.so [--library other=b.so] [--seconds 0.3] [--turns 3] [--only 128]

TFLOP/s by 4 * pairs * dim, half of the pairs where causal; the median over the turns. Each row has the multiprocessors'
clock and the card's power while it ran: a Hopper card at its power limit slows down by a tenth.
"""

import argparse
import csv
import statistics
import sys
import threading
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).parent))
from forward_c import NO_LIMIT, Library  # noqa: E402


class Meter:
    """Clock and power, twenty times a second."""

    def __init__(self):
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.samples = []

        def sample():
            while True:
                clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
                self.samples.append((time.perf_counter(), clock, pynvml.nvmlDeviceGetPowerUsage(handle) / 1000))
                time.sleep(0.05)

        threading.Thread(target=sample, daemon=True).start()

    def between(self, begin, end):
        seen = [s for s in self.samples if begin <= s[0] <= end] or self.samples[-1:]
        return statistics.mean(s[1] for s in seen), statistics.mean(s[2] for s in seen)


def timed(call, seconds, meter):
    """Milliseconds a call, clock, power: one long stretch of calls."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        call()
    begin.record()
    call()
    end.record()
    end.synchronize()
    count = max(3, int(seconds * 1e3 / begin.elapsed_time(end)))
    start = time.perf_counter()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count, *meter.between(start, time.perf_counter())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", action="append", required=True)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--shapes", default="128x16,64x32", help="head dim x heads")
    parser.add_argument("--rows", default="2048,4096,8192,16384")
    parser.add_argument("--masks", default="causal,full")
    parser.add_argument("--packed-heads", action="store_true", help="cuDNN also with [batch, heads, rows, dim] in memory")
    parser.add_argument("--no-flash", action="store_true")
    parser.add_argument("--csv")
    args = parser.parse_args()
    libraries = {name: Library(path) for name, path in (text.split("=") for text in args.library)}
    meter = Meter()
    a, b = (torch.randn(rows, 8192, device="cuda", dtype=torch.bfloat16) for rows in (32768, 8192))
    rows = []
    for shape in args.shapes.split(","):
        dim, heads = (int(n) for n in shape.split("x"))
        for mask in args.masks.split(","):
            for length in (int(n) for n in args.rows.split(",")):
                batch = max(1, args.tokens // length)
                q, k, v = (
                    torch.randn(batch, length, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)
                )
                causal = mask == "causal"
                flops = 4 * length * length * dim * batch * heads / (2 if causal else 1)
                out, lse = torch.empty_like(q), torch.empty(batch, heads, length, device="cuda")
                window = (NO_LIMIT, 0 if causal else NO_LIMIT)
                turned = [t.transpose(1, 2) for t in (q, k, v)]

                def ours(library, q=q, k=k, v=v, out=out, lse=lse, window=window):
                    return lambda: library.forward(q, k, v, window=window, out=out, lse=lse)

                def torchs(backend, turned=turned, causal=causal):
                    def call():
                        with sdpa_kernel([backend]):
                            scaled_dot_product_attention(*turned, is_causal=causal)

                    return call

                calls = {"gemm": (lambda: a @ b, 2 * 32768 * 8192 * 8192)}
                calls["cuDNN"] = (torchs(SDPBackend.CUDNN_ATTENTION), flops)
                if args.packed_heads:
                    packed = [t.contiguous() for t in turned]
                    calls["cuDNN, heads first"] = (torchs(SDPBackend.CUDNN_ATTENTION, packed), flops)
                if not args.no_flash:
                    calls["flash"] = (torchs(SDPBackend.FLASH_ATTENTION), flops)
                for name, library in libraries.items():
                    calls[name] = (ours(library), flops)
                measured = {name: [] for name in calls}
                for _ in range(args.turns):
                    for name, (call, _) in calls.items():
                        measured[name].append(timed(call, args.seconds, meter))
                line = f"d{dim} h{heads} {mask} {batch}x{length}:"
                for name, (_, work) in calls.items():
                    ms, clock, power = (statistics.median(m[i] for m in measured[name]) for i in range(3))
                    rate = work / ms / 1e9
                    rows.append([dim, heads, mask, batch, length, name, f"{ms:.4f}", f"{rate:.1f}", f"{clock:.0f}", f"{power:.0f}"])
                    line += f" {name} {rate:.0f} ({clock:.0f})"
                print(line, flush=True)
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            csv.writer(file).writerows(
                [["dim", "heads", "mask", "batch", "rows", "who", "ms", "tflops", "sm_mhz", "watt"], *rows]
            )


if __name__ == "__main__":
    main()
