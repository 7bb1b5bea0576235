"""A decode step's layers on a GPU, one behind the other in one CUDA graph, and what each launch of them takes.

    decode.py --packages build/packages [--model Qwen3-0.6B] [--rows 1,4,16] [--context 576] [--profile]

Weights are random and as many as the model has, so that no cache holds them. Bytes are those of weights and of keys and values.
Values are those of tests; here the first layer is held against float64 once more before anything is timed.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import NamedTuple

import torch


class Shape(NamedTuple):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    ffn: int
    head_norms: bool


MODELS = {
    "Qwen3-0.6B": Shape(28, 1024, 16, 8, 128, 3072, True),
    "Llama-8B": Shape(32, 4096, 32, 8, 128, 14336, False),
    "SmolLM2-135M": Shape(30, 576, 9, 3, 64, 1536, False),
}
EPS = 1e-6


def ops(packages: Path, name: str):
    metadata = next(packages.glob(f"{name}/build/*-cu*/metadata.json"))
    package_id = json.loads(metadata.read_text())["id"]
    torch.ops.load_library(metadata.parent / f"{package_id}.abi3.so")
    return getattr(torch.ops, package_id)


def captured(work) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    """The median without the first five."""
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[5:])


class Layer:
    def __init__(self, s: Shape, rows: int, context: int):
        def random(*shape, scale=1.0):
            return (torch.randn(*shape, device="cuda") * scale).bfloat16()

        wide = s.heads * s.dim
        self.norm, self.post_norm = random(s.hidden, scale=0.1) + 1, random(s.hidden, scale=0.1) + 1
        self.q, self.k, self.v = (random(n * s.dim, s.hidden, scale=s.hidden**-0.5) for n in (s.heads, s.kv_heads, s.kv_heads))
        self.o, self.down = random(s.hidden, wide, scale=wide**-0.5), random(s.hidden, s.ffn, scale=s.ffn**-0.5)
        self.gate, self.up = (random(s.ffn, s.hidden, scale=s.hidden**-0.5) for _ in range(2))
        self.head_norms = [random(s.dim, scale=0.1) + 1 if s.head_norms else None for _ in range(2)]
        self.keys, self.values = (random(rows, s.kv_heads, context + 64, s.dim).transpose(1, 2) for _ in range(2))
        self.scale = s.dim**-0.5

    def run(self, op, x, cos, sin, position):
        return op(
            x, self.norm, self.q, None, self.k, None, self.v, None, *self.head_norms, cos, sin, self.keys, self.values, position,
            self.o, None, self.post_norm, self.gate, None, self.up, None, self.down, None, EPS, EPS, self.scale, -1, "silu", True,
        )  # fmt: skip

    def exact(self, s: Shape, x, cos, sin, context):
        def norm(t, weight):
            return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + EPS) * weight.double() if weight is not None else t

        def turned(t):
            a, b = t.chunk(2, -1)
            return t * cos.double() + torch.cat([-b, a], -1) * sin.double()

        x = x.double()
        rows, n = x.shape[0], norm(x, self.norm)
        q, k, v = ((n @ w.double().T).view(rows, -1, s.dim) for w in (self.q, self.k, self.v))
        q, k = (turned(norm(t, w)) for t, w in zip((q, k), self.head_norms))
        keys = torch.cat([self.keys[:, :context].double(), k[:, None]], 1).repeat_interleave(s.heads // s.kv_heads, 2)
        values = torch.cat([self.values[:, :context].double(), v[:, None]], 1).repeat_interleave(s.heads // s.kv_heads, 2)
        weights = (torch.einsum("bhd,bkhd->bhk", q, keys) * self.scale).softmax(-1)
        h = x + (torch.einsum("bhk,bkhd->bhd", weights, values).reshape(rows, 1, -1) @ self.o.double().T)
        m = norm(h, self.post_norm)
        return h + (torch.nn.functional.silu(m @ self.gate.double().T) * (m @ self.up.double().T)) @ self.down.double().T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="Qwen3-0.6B")
    parser.add_argument("--rows", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=576)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    op, s = ops(args.packages, "decode").decoder_layer, MODELS[args.model]
    torch.manual_seed(0)
    for rows in args.rows:
        layers = [Layer(s, rows, args.context) for _ in range(s.layers)]
        x = torch.randn(rows, 1, s.hidden, device="cuda").bfloat16()
        angle = torch.randn(1, 1, s.dim // 2, device="cuda").repeat(1, 1, 2)
        cos, sin, position = angle.cos().bfloat16(), angle.sin().bfloat16(), torch.tensor([args.context], device="cuda")
        want = layers[0].exact(s, x, cos, sin, args.context)
        error = float((layers[0].run(op, x, cos, sin, position).double() - want).norm() / want.norm())
        if not error < 2**-6:
            raise SystemExit(f"expected the layer's values; got an error of {error}")

        def step():
            y = x
            for layer in layers:
                y = layer.run(op, y, cos, sin, position)
            return y

        graph = captured(step)
        us = replay_us(graph, repeats=30)
        weights = sum(t.numel() for t in (layers[0].q, layers[0].k, layers[0].v, layers[0].o, layers[0].gate, layers[0].up, layers[0].down))
        cache = 2 * rows * args.context * s.kv_heads * s.dim
        rate = 2 * (weights + cache) * s.layers / us / 1e6
        print(f"{args.model} {rows:2} rows, context {args.context}: {us:8.1f} us a step, {us / s.layers:6.2f} a layer, "
              f"{rate:5.2f} TB/s, error {error:.1e}", flush=True)  # fmt: skip
        if args.profile:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for _ in range(5):
                    step()
                torch.cuda.synchronize()
            for row in sorted(profile.key_averages(), key=lambda r: -r.self_device_time_total)[:6]:
                print(f"    {row.self_device_time_total / row.count:7.2f} us x {row.count // 5:3} {row.key[:150]}", flush=True)
        del layers, graph
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
