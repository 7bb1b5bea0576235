"""Attention on a GPU beside torch's cuDNN and flash backends and a large matrix product, in turns.

    bench_cuda.py --library ours=attention.so [--library other=b.so] [--what backward] [--seconds 0.3] [--turns 3]

TFLOP/s by 2 * pairs * (dim + dim of values), in backward 2 * pairs * (3 dim + 2 dim of values), half of the pairs where causal; the median over the turns. Values are
compared with cuDNN's first. Masks: causal, full; and without a peer, window (causal, 1024 keys, by the pairs that are
seen), chunk (likewise), alibi (causal) and packed (causal, sequences of 64 to 4096 rows; --rows is not read). Each row has the multiprocessors' clock and the card's power while it ran: a Hopper card at
its power limit slows down by a tenth.
"""

import argparse
import csv
import itertools
import statistics
import sys
import threading
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).parent))
from attention_c import NO_LIMIT, Library  # noqa: E402


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


PACKED = (4096, 64, 1024, 512, 3072, 2048, 128, 2048, 256, 1536, 1024, 64, 512)  # 16384 rows


class Shape:
    """Inputs of one row of the table, and what is timed on them."""

    def __init__(self, args, dims, heads, key_heads, mask, length):
        dim, value_dim = dims
        self.packed = mask == "packed"
        self.batch, self.length = (1, sum(PACKED)) if self.packed else (max(1, args.tokens // length), length)
        self.causal, self.peer = mask == "causal", mask in ("causal", "full")
        self.name = f"d{dim}{'' if dim == value_dim else f'/{value_dim}'} h{heads}/{key_heads} {mask} {self.batch}x{self.length}"
        lead = () if self.packed else (self.batch,)

        def random(heads, dim):
            return torch.randn(*lead, self.length, heads, dim, device="cuda", dtype=torch.bfloat16)

        self.q, self.k = random(heads, dim), random(key_heads, dim)
        self.v, self.dout = random(key_heads, value_dim), random(heads, value_dim)
        self.out, self.lse = torch.empty_like(self.dout), torch.empty(*lead, heads, self.length, device="cuda")
        window = {"full": (NO_LIMIT, NO_LIMIT), "window": (1023, 0)}
        self.options = dict(window=window.get(mask, (NO_LIMIT, 0)), chunk=1024 if mask == "chunk" else 0)
        if mask == "alibi":
            self.options["slopes"] = torch.rand(heads, device="cuda") / 100
        pairs = {"full": length**2, "window": 1024 * (length - 512), "chunk": 512 * length}.get(mask, length**2 / 2)
        pairs *= self.batch
        if self.packed:
            starts = [0, *itertools.accumulate(PACKED)]
            self.options["starts"] = (torch.tensor(starts, dtype=torch.int32, device="cuda"),) * 2
            pairs = sum(n**2 for n in PACKED) / 2
        self.gradients = [torch.empty_like(t) for t in (self.q, self.k, self.v)] + [None]
        self.flops = 2 * pairs * heads * (3 * dim + 2 * value_dim if args.what == "backward" else dim + value_dim)
        self.backward, self.gqa, self.deterministic = args.what == "backward", heads != key_heads, args.deterministic

    def ours(self, library):
        def forward():
            library.forward(self.q, self.k, self.v, out=self.out, lse=self.lse, **self.options)
            return [self.out]

        def backward():
            library.backward(
                self.dout, self.q, self.k, self.v, self.out, self.lse, gradients=self.gradients,
                deterministic=self.deterministic, **self.options,
            )
            return self.gradients[:3]

        forward()
        return backward if self.backward else forward

    def torchs(self, backend):
        turned = [t.transpose(1, 2).detach().requires_grad_(self.backward) for t in (self.q, self.k, self.v)]

        def forward():
            with sdpa_kernel([backend]):
                return scaled_dot_product_attention(*turned, is_causal=self.causal, enable_gqa=self.gqa)

        if not self.backward:
            return lambda: [forward().transpose(1, 2)]
        out, dout = forward(), self.dout.transpose(1, 2)

        def backward():
            return [t.transpose(1, 2) for t in torch.autograd.grad(out, turned, dout, retain_graph=True)]

        return backward


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", action="append", required=True)
    parser.add_argument("--what", choices=("forward", "backward"), default="forward")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--shapes", default="128x16,64x32", help="head dim x heads, or x key heads; 192/128: values of 128")
    parser.add_argument("--rows", default="2048,4096,8192,16384")
    parser.add_argument("--masks", default="causal,full")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--no-flash", action="store_true")
    parser.add_argument("--no-product", action="store_true")
    parser.add_argument("--csv")
    args = parser.parse_args()
    libraries = {name: Library(path) for name, path in (text.split("=") for text in args.library)}
    meter = Meter()
    a, b = (torch.randn(rows, 8192, device="cuda", dtype=torch.bfloat16) for rows in (32768, 8192))
    rows = []
    for shape, mask, length in itertools.product(args.shapes.split(","), args.masks.split(","), args.rows.split(",")):
        dims, heads, *key_heads = shape.split("x")
        dim, *value_dim = (int(n) for n in dims.split("/"))
        heads, *key_heads = int(heads), *(int(n) for n in key_heads)
        x = Shape(args, (dim, *(value_dim or [dim])), heads, (key_heads or [heads])[0], mask, int(length))
        calls = {"cuDNN": (x.torchs(SDPBackend.CUDNN_ATTENTION), x.flops)} if x.peer else {}
        if x.peer and not args.no_flash and not value_dim:  # it has no values of another size
            calls["flash"] = (x.torchs(SDPBackend.FLASH_ATTENTION), x.flops)
        if not args.no_product:
            calls["gemm"] = (lambda: a @ b, 2 * 32768 * 8192 * 8192)
        want = [t.clone() for t in calls["cuDNN"][0]()] if x.peer else []
        for name, library in libraries.items():
            calls[name] = (x.ours(library), x.flops)
            for got, wanted in zip(calls[name][0](), want):
                error = ((got - wanted).double().norm() / wanted.double().norm()).item()
                if not error < 1e-2:  # two roundings to bfloat16 of 2^-9 each, and those of p and dx
                    raise AssertionError(f"{name}, {x.name}: wanted cuDNN's values; got a relative error of {error:.1e}")
        measured = {name: [] for name in calls}
        for _ in range(args.turns):
            for name, (call, _) in calls.items():
                measured[name].append(timed(call, args.seconds, meter))
        line = f"{x.name}:"
        for name, (_, work) in calls.items():
            ms, clock, power = (statistics.median(m[i] for m in measured[name]) for i in range(3))
            rate = work / ms / 1e9
            rows.append([args.what, x.name, name, f"{ms:.4f}", f"{rate:.1f}", f"{clock:.0f}", f"{power:.0f}"])
            line += f" {name} {rate:.0f} ({clock:.0f})"
        print(line, flush=True)
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            csv.writer(file).writerows([["what", "shape", "who", "ms", "tflops", "sm_mhz", "watt"], *rows])


if __name__ == "__main__":
    main()
