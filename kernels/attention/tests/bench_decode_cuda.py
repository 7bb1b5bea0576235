"""Decode on a GPU: bytes of keys and values a second, beside a copy of as many and torch's SDPA over a dense cache.

    bench_decode_cuda.py --library attention.so

GB/s of what must be read, from replays of a captured graph; the copy, a multiplication by 1, counts what it reads and
writes. Caches are larger than L2, so that each call reads memory.
"""

import argparse
import statistics
import sys
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).parent))
from attention_c import NO_LIMIT, Library  # noqa: E402


def rate(call, size, turns=5, calls=20):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = []
    for _ in range(turns):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / calls / 1e3)
    return size / statistics.median(seconds) / 1e9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    args = parser.parse_args()
    library = Library(args.library)
    source = torch.randn(1 << 28, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    copy = rate(lambda: torch.mul(source, 1, out=target), 4 << 28)
    print(f"copy {copy:.0f} GB/s", flush=True)
    for batch, heads, key_heads, dim, length in (
        (1, 32, 8, 128, 131072), (4, 32, 8, 128, 32768), (16, 32, 8, 128, 8192), (64, 32, 8, 128, 2048),
        (16, 16, 8, 128, 2048), (1, 16, 8, 128, 1024), (16, 64, 8, 64, 8192), (16, 16, 1, 256, 8192),
        (16, 16, 1, 512, 8192),
    ):
        q = torch.randn(batch, 1, heads, dim, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(batch, length, key_heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
        size = 2 * k.numel() * 2
        out = torch.empty_like(q)
        line = f"b{batch} h{heads}/{key_heads} d{dim} {length}:"
        want = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), enable_gqa=True).transpose(1, 2)
        for page in (0, 64, 16):
            table, caches = None, (k, v)
            if page:
                order = torch.randperm(batch * length // page, device="cuda")
                caches = [torch.empty_like(t).view(-1, page, key_heads, dim) for t in (k, v)]
                for cache, t in zip(caches, (k, v)):
                    cache[order] = t.view(-1, page, key_heads, dim)
                table = order.to(torch.int32).view(batch, -1)

            def call(caches=caches, table=table):
                library.decode(q, *caches, lengths, key_rows=length, table=table, window=(NO_LIMIT, 0), out=out)

            call()
            error = ((out - want).double().norm() / want.double().norm()).item()
            if not error < 1e-2:
                raise AssertionError(f"{line} wanted SDPA's values; got a relative error of {error:.1e}")
            line += f" {'page ' + str(page) if page else 'dense'} {rate(call, size):.0f}"
        try:
            turned = [t.transpose(1, 2) for t in (q, k, v)]
            line += f" SDPA {rate(lambda: scaled_dot_product_attention(*turned, enable_gqa=True), size, calls=3):.0f}"
        except RuntimeError as e:
            line += f" SDPA: {str(e)[:40]}"
        print(line, flush=True)

    for batch, heads, length in ((1, 16, 131072), (16, 16, 8192), (64, 16, 4096), (64, 128, 4096)):
        print(latent(library, batch, heads, length), flush=True)


def latent(library, batch, heads, length):
    """One key head of 576 numbers, whose first 512 are the values; bytes of both once."""
    q = torch.randn(batch, 1, heads, 576, device="cuda", dtype=torch.bfloat16)
    keys = torch.randn(batch, length, 1, 576, device="cuda", dtype=torch.bfloat16)
    lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
    weights = torch.softmax((q[:, 0] @ keys[:, :, 0].mT).float() * 576**-0.5, -1).bfloat16()
    want, out = (weights @ keys[:, :, 0, :512])[:, None], torch.empty_like(q[..., :512])
    line = f"latent b{batch} h{heads} {length}:"
    for page in (0, 64, 16):
        table, cache = None, keys
        if page:
            order = torch.randperm(batch * length // page, device="cuda")
            cache = torch.empty_like(keys).view(-1, page, 1, 576)
            cache[order] = keys.view(-1, page, 1, 576)
            table = order.to(torch.int32).view(batch, -1)

        def call(cache=cache, table=table):
            library.decode(q, cache, cache[..., :512], lengths, key_rows=length, table=table, window=(NO_LIMIT, 0), out=out)

        call()
        error = ((out - want).double().norm() / want.double().norm()).item()
        if not error < 1e-2:
            raise AssertionError(f"{line} wanted plain attention's values; got a relative error of {error:.1e}")
        line += f" {'page ' + str(page) if page else 'dense'} {rate(call, keys.numel() * 2):.0f}"
    return line


if __name__ == "__main__":
    main()
