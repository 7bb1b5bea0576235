"""Decode on a GPU: bytes of keys and values a second, beside a copy of as many and torch's SDPA over a dense cache.

    attention_decode.py --library attention.so [--library other=b.so] [--seconds 0.1] [--turns 2] [--only latent] [--csv FILE]

GB/s of what must be read, from replays of a captured graph, in turns; the copy, a multiplication by 1, counts what it reads
and writes. Rows are of the first library; others take turns with it. Caches are larger than L2, so that each call reads memory. As load each row has the multiprocessors' clock and
the card's power, ours and theirs.
"""

import argparse
import functools
import re
import statistics
import sys
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

sys.path.append(str(Path(__file__).resolve().parents[3]))  # where the package bench is
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from bench.lib import results  # noqa: E402
from bench.lib.gpu_meter import Meter  # noqa: E402
from attention import timed  # noqa: E402
from attention_c import NO_LIMIT, Library  # noqa: E402

COPY, SDPA = "a copy", "torch SDPA, dense"
TARGETS = {0: 0.85, 16: 0.7, 64: 0.85, 256: 0.85}  # of the copy, by rows of a page
SHAPES = (  # batch, heads, key heads, dim, keys
    (1, 32, 8, 128, 131072), (4, 32, 8, 128, 32768), (16, 32, 8, 128, 8192), (64, 32, 8, 128, 2048), (16, 16, 8, 128, 2048),
    (1, 16, 8, 128, 1024), (16, 64, 8, 64, 8192), (16, 16, 1, 256, 8192), (16, 16, 1, 256, 32768), (16, 16, 1, 512, 8192),
)  # fmt: skip
LATENT = (  # batch, heads, keys
    (1, 16, 131072), (16, 16, 8192), (64, 16, 4096), (16, 16, 32768), (64, 64, 4096), (16, 64, 32768), (64, 128, 4096), (16, 128, 8192), (1, 128, 131072),
)  # fmt: skip


def dense_name(batch, heads, key_heads, dim, length):
    return f"{batch}x{length}, {heads} heads over {key_heads} of {dim}"


def latent_name(batch, heads, length):
    return f"{batch}x{length}, latent, {heads} heads"


def captured(call, calls=20):
    """A replay of `calls` of them."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()

    def replay(of=call):  # a graph holds no tensor: what it reads and writes lives as long as this does
        graph.replay()

    return replay, calls


class Bench:
    def __init__(self, args):
        self.args = args
        named = [text.rpartition("=")[::2] for text in args.library]
        self.libraries = {name or "ours": Library(path) for name, path in named}
        self.report, self.meter = results.Results(args, results.gpu()), Meter()
        source = torch.randn(1 << 28, device="cuda", dtype=torch.bfloat16)
        target = torch.empty_like(source)
        self.copy = (*captured(lambda: torch.mul(source, 1, out=target)), 4 << 28)

    def row(self, shape, page, calls):
        """calls: who -> (replay, calls of a replay, bytes of a call); ours among them."""
        measured = {who: [] for who in calls}
        for turn in range(self.args.turns):
            for who, (replay, _, _) in [*calls.items()][:: -1 if turn % 2 else 1]:
                measured[who].append(timed(replay, self.args.seconds, self.meter))
        found = {}
        for who, (_, count, size) in calls.items():
            ms, clock, power = (statistics.median(m[i] for m in measured[who]) for i in range(3))
            found[who] = round(size * count / ms / 1e6, 1), f"{clock:.0f} MHz {power:.0f} W"
        print(f"{shape}, {f'pages of {page}' if page else 'dense'}: " + ", ".join(f"{n} {r:.0f} ({l})" for n, (r, l) in found.items()), flush=True)
        rate, load = found.pop("ours")
        for who, (theirs, their_load) in found.items():
            if who in self.libraries:
                continue
            self.report.add(
                kind="op", what="attention_decode", shape=f"{shape}, {f'pages of {page}' if page else 'dense'}", dtype="bfloat16",
                ours=rate, peer=theirs, peer_name=who, unit="GB/s", target=TARGETS[page] if who == COPY else "",
                load=f"{load}; {their_load}",
            )  # fmt: skip
        self.report.flush()

    def pages_of(self, caches, batch, length, page):
        """The caches in pages of any order, and their table."""
        if not page:
            return caches, None
        order = torch.randperm(batch * length // page, device="cuda")
        paged = [torch.empty_like(t).view(-1, page, *t.shape[2:]) for t in caches]
        for cache, t in zip(paged, caches):
            cache[order] = t.view(cache.shape)
        return paged, order.to(torch.int32).view(batch, -1)

    def check(self, shape, out, want):
        error = ((out - want).double().norm() / want.double().norm()).item()
        if not error < 1e-2:
            raise AssertionError(f"{shape}: expected plain attention's values; got a relative error of {error:.1e}")

    def dense(self, batch, heads, key_heads, dim, length):
        q = torch.randn(batch, 1, heads, dim, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(batch, length, key_heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        lengths, size = torch.full((batch,), length, dtype=torch.int32, device="cuda"), 2 * k.numel() * 2
        out, shape = torch.empty_like(q), dense_name(batch, heads, key_heads, dim, length)
        turned = [t.transpose(1, 2) for t in (q, k, v)]
        sdpa = lambda: scaled_dot_product_attention(*turned, enable_gqa=True)
        want = sdpa().transpose(1, 2)
        peers = {COPY: self.copy}
        try:
            peers[SDPA] = (*captured(sdpa, 3), size)
        except RuntimeError as e:
            print(f"{shape}: SDPA is left out: {str(e)[:60]}")
        for page in self.args.pages:
            caches, table = self.pages_of((k, v), batch, length, page)

            def call(library, out=out, caches=caches, table=table):
                library.decode(q, *caches, lengths, key_rows=length, table=table, window=(NO_LIMIT, 0), out=out)

            self.row(shape, page, self.ours(call, shape, out, want, size) | peers)

    def ours(self, call, shape, out, want, size):
        found = {}
        for name, library in self.libraries.items():
            call(library)
            self.check(f"{name}, {shape}", out, want)
            found[name] = (*captured(functools.partial(call, library)), size)
        return found

    def latent(self, batch, heads, length):
        """One key head of 576 numbers, whose first 512 are the values; bytes of both once."""
        q = torch.randn(batch, 1, heads, 576, device="cuda", dtype=torch.bfloat16)
        keys = torch.randn(batch, length, 1, 576, device="cuda", dtype=torch.bfloat16)
        lengths, shape = torch.full((batch,), length, dtype=torch.int32, device="cuda"), latent_name(batch, heads, length)
        weights = torch.softmax((q[:, 0] @ keys[:, :, 0].mT).float() * 576**-0.5, -1).bfloat16()
        want, out = (weights @ keys[:, :, 0, :512])[:, None], torch.empty_like(q[..., :512])
        for page in self.args.pages:
            (cache,), table = self.pages_of((keys,), batch, length, page)

            def call(library, out=out, cache=cache, table=table):
                values = cache[..., :512]
                library.decode(q, cache, values, lengths, key_rows=length, table=table, window=(NO_LIMIT, 0), out=out)

            self.row(shape, page, self.ours(call, shape, out, want, keys.numel() * 2) | {COPY: self.copy})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="append", required=True)
    parser.add_argument("--only", choices=("dense", "latent"))
    parser.add_argument("--match", default="", help="a regular expression: shapes whose name has it")
    parser.add_argument("--dims", type=lambda text: [int(d) for d in text.split(",")], help="of dense caches")
    parser.add_argument("--pages", type=lambda text: [int(p) for p in text.split(",")], default=[*TARGETS])
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=2)
    results.add_flags(parser)
    args = parser.parse_args()
    bench = Bench(args)
    for shape in SHAPES if args.only != "latent" else ():
        if (not args.dims or shape[3] in args.dims) and re.search(args.match, dense_name(*shape)):
            bench.dense(*shape)
    for shape in LATENT if args.only != "dense" else ():
        if re.search(args.match, latent_name(*shape)):
            bench.latent(*shape)


if __name__ == "__main__":
    main()
