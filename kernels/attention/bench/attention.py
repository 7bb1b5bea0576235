"""Attention on a GPU beside torch's cuDNN and flash backends and a large matrix product, in turns.

    attention.py --library ours=attention.so [--library other=b.so] [--what backward] [--dtype float16] [--triton FILE] [--csv FILE]

TFLOP/s by 2 * pairs * (dim + dim of values), in backward 2 * pairs * (3 dim + 2 dim of values), half of the pairs where
causal; the median over the turns. Values are compared with cuDNN's first. Masks: causal, full; and beside our own causal
call of 2 x 8192, window (causal, 1024 keys, by the pairs that are seen), chunk (likewise), alibi (causal) and packed
(causal, sequences of 64 to 4096 rows; --rows is not read). Rows are of the library named "ours". As load each has the
multiprocessors' clock and the card's power while it ran, ours and theirs: a Hopper card at its power limit slows down by
a tenth, some tenths of a second late, so that who comes behind a product is slowed down for it: each call runs untimed
before it is timed, for as long or half a second, and every second turn goes the other way round. The file is Triton's tutorial of fused attention, of float16 and heads of a power of two, as it stands.
"""

import argparse
import importlib.util
import itertools
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.append(str(Path(__file__).resolve().parents[3]))  # where the package bench is
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from bench.lib import results  # noqa: E402
from bench.lib.gpu_meter import Meter  # noqa: E402
from attention_c import NO_LIMIT, Library  # noqa: E402


# Of causal calls beside cuDNN, by head dimension; masks beside our own causal call; the longest beside a product.
TARGETS = {"forward": {64: 1.05, 128: 1.03, 256: 1.0}, "backward": {64: 1.1, 128: 1.03, 256: 1.25}}
TARGET_OF_MASKS, TARGET_OF_PRODUCT = 0.85, 0.93
# 640 and 440 TFLOP/s, published of a card on which cuDNN is 1.09 times as fast as on ours.
LATENT_TARGETS = {"forward": "586 TFLOP/s", "backward": "404 TFLOP/s"}
SETTLE = 0.5  # seconds, at most, in which a call reaches its own clock before it is timed


def timed(call, seconds, meter):
    """Milliseconds a call, clock, power: one long stretch of calls, behind one that is not timed."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        call()
    begin.record()
    call()
    end.record()
    end.synchronize()
    once = begin.elapsed_time(end)
    count = max(3, int(seconds * 1e3 / once))
    for _ in range(max(3, int(min(seconds, SETTLE) * 1e3 / once))):
        call()
    torch.cuda.synchronize()
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
        over = "" if heads == key_heads else f"over {key_heads} "
        values = "" if dim == value_dim else f", values of {value_dim}"
        lengths = f"{len(PACKED)} sequences of {self.length} rows" if self.packed else f"{self.batch}x{self.length}"
        self.name = f"{lengths}, {heads} heads {over}of {dim}{values}, {mask}{', deterministic' * args.deterministic}"
        lead = () if self.packed else (self.batch,)

        def random(heads, dim):
            return torch.randn(*lead, self.length, heads, dim, device="cuda", dtype=args.dtype)

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

    def tritons(self, tutorial):
        """Its own layout and type: [batch, heads, rows, dim], float16."""
        q, k, v = (
            t.transpose(1, 2).to(torch.float16).contiguous().requires_grad_(self.backward) for t in (self.q, self.k, self.v)
        )

        def forward():
            return tutorial.attention(q, k, v, self.causal, q.shape[-1] ** -0.5, False)

        if not self.backward:
            return lambda: [forward().transpose(1, 2)]
        out, dout = forward(), self.dout.transpose(1, 2).to(torch.float16).contiguous()

        def backward():
            return [t.transpose(1, 2) for t in torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)]

        return backward


def target_of(args, x, dim, value_dim, mask, peer):
    if peer == CUDNN and x.causal:
        return TARGETS[args.what].get(dim, "") if dim == value_dim else LATENT_TARGETS[args.what]
    if peer == PRODUCT and x.causal and (args.what, dim, x.length) == ("forward", 128, 16384):
        return TARGET_OF_PRODUCT
    return TARGET_OF_MASKS if peer == DENSE and mask in ("window", "packed") else ""


CUDNN, FLASH, TRITON = "torch cuDNN", "torch flash", "Triton's tutorial, float16"
PRODUCT, DENSE = "torch 32768x8192x8192 product", "ours, 2x8192, causal"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="append", required=True)
    parser.add_argument("--what", choices=("forward", "backward"), default="forward")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.bfloat16)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--shapes", default="128x16,64x32", help="head dim x heads, or x key heads; 192/128: values of 128")
    parser.add_argument("--rows", default="2048,4096,8192,16384")
    parser.add_argument("--masks", default="causal,full")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--no-flash", action="store_true")
    parser.add_argument("--no-product", action="store_true")
    parser.add_argument("--triton", type=Path)
    results.add_flags(parser)
    args = parser.parse_args()
    libraries = {name: Library(path) for name, path in (text.split("=") for text in args.library)}
    report, meter, tutorial = results.Results(args, results.gpu()), Meter(), None
    if args.triton:
        spec = importlib.util.spec_from_file_location("tutorial", args.triton)
        tutorial = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tutorial)
    product = None
    if not args.no_product:
        a, b = (torch.randn(rows, 8192, device="cuda", dtype=args.dtype) for rows in (32768, 8192))
        product = (lambda: a @ b, 2 * 32768 * 8192 * 8192)
    for shape, mask, length in itertools.product(args.shapes.split(","), args.masks.split(","), args.rows.split(",")):
        dims, heads, *key_heads = shape.split("x")
        dim, *value_dim = (int(n) for n in dims.split("/"))
        heads, *key_heads = int(heads), *(int(n) for n in key_heads)
        dims, key_heads = (dim, *(value_dim or [dim])), (key_heads or [heads])[0]
        x = Shape(args, dims, heads, key_heads, mask, int(length))
        calls = {CUDNN: (x.torchs(SDPBackend.CUDNN_ATTENTION), x.flops)} if x.peer else {}
        if x.peer and not args.no_flash and not value_dim:  # it has no values of another size
            calls[FLASH] = (x.torchs(SDPBackend.FLASH_ATTENTION), x.flops)
        if tutorial and x.peer and heads == key_heads and dims in ((64, 64), (128, 128), (256, 256)):
            try:
                calls[TRITON] = (x.tritons(tutorial), x.flops)
                calls[TRITON][0]()
            except tutorial.triton.runtime.errors.OutOfResources as e:  # backward of heads of 256
                print(f"{x.name}: {TRITON} is left out: {e}")
                calls.pop(TRITON, None)
        if product:
            calls[PRODUCT] = product
        if not x.peer and "ours" in libraries:
            dense = Shape(args, dims, heads, key_heads, "causal", 8192)
            calls[DENSE] = (dense.ours(libraries["ours"]), dense.flops)
        want = [t.clone() for t in calls[CUDNN][0]()] if x.peer else []
        for name, library in libraries.items():
            calls[name] = (x.ours(library), x.flops)
        for name in {TRITON, *libraries} & calls.keys():
            for got, wanted in zip(calls[name][0](), want):
                error = ((got - wanted).double().norm() / wanted.double().norm()).item()
                if not error < 1e-2:  # two roundings to bfloat16 of 2^-9 each, and those of p and dx
                    raise AssertionError(f"{name}, {x.name}: expected cuDNN's values; got a relative error of {error:.1e}")
        measured = {name: [] for name in calls}
        for turn in range(args.turns):
            for name, (call, _) in [*calls.items()][:: -1 if turn % 2 else 1]:
                measured[name].append(timed(call, args.seconds, meter))
        found = {}
        for name, (_, work) in calls.items():
            ms, clock, power = (statistics.median(m[i] for m in measured[name]) for i in range(3))
            found[name] = work / ms / 1e9, f"{clock:.0f} MHz {power:.0f} W"
        print(f"{args.what} {x.name}: " + ", ".join(f"{n} {rate:.0f} ({load})" for n, (rate, load) in found.items()), flush=True)
        if "ours" not in found:
            continue
        (rate, load), peers = found["ours"], {n: f for n, f in found.items() if n not in libraries}
        for peer, (theirs, their_load) in peers.items() or {"": ("", "")}.items():
            report.add(
                kind="op", what=f"attention_{args.what}", shape=x.name, dtype=str(args.dtype)[6:], unit="TFLOP/s", ours=round(rate, 1),
                peer=theirs and round(theirs, 1), peer_name=peer, target=target_of(args, x, *dims, mask, peer),
                load=f"{load}; {their_load}".rstrip("; "),
            )  # fmt: skip
        report.flush()


if __name__ == "__main__":
    main()
