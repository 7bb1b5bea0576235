"""How many rows the whole-layer op should be given: the same layers whole, and by their parts.

    decode_rows.py --packages build/packages [--shapes Llama-8B,...] [--rows 4,8,12,16] [--contexts 576,mixed] [--profile]

Parts are the ops that a host runs in place of the whole layer: norms, products, rotary embedding, keys and values written by
index, attention over them, the activation. Each form is a CUDA graph of as many layers as --layers, us a layer; "few" has products of
the linear package, "torch" those of torch's library. "mixed" is lengths drawn from 64 to 4096, seed 38. Floors are bytes over 4.3 TB/s.
"""

import argparse
import random
from pathlib import Path

import torch
from decode import EPS, MODELS, Shape, captured, ops, replay_us

BYTES_A_US = 4.3e6
SHAPES = MODELS | {
    "Llama-1B": Shape(16, 2048, 32, 8, 64, 8192, False),
    "Llama-3B": Shape(28, 3072, 24, 8, 128, 8192, False),
    "Qwen3-4B": Shape(36, 2560, 32, 8, 128, 9728, True),
}


class Layers:
    def __init__(self, packages, s: Shape, count: int, rows: int, lengths: list[int]):
        def new(*shape, scale=1.0):
            return (torch.randn(*shape, device="cuda") * scale).bfloat16()

        self.p, self.s, self.rows = packages, s, rows
        wide, kv, capacity = s.heads * s.dim, s.kv_heads * s.dim, (max(lengths) + 64) // 16 * 16
        sizes = {"q": (wide, s.hidden), "k": (kv, s.hidden), "v": (kv, s.hidden), "o": (s.hidden, wide),
                 "gate": (s.ffn, s.hidden), "up": (s.ffn, s.hidden), "down": (s.hidden, s.ffn)}  # fmt: skip
        self.w = [{name: new(*size, scale=size[1] ** -0.5) for name, size in sizes.items()} for _ in range(count)]
        self.norm = new(s.hidden, scale=0.1) + 1
        self.head_norm = new(s.dim, scale=0.1) + 1 if s.head_norms else None
        self.caches = [[new(rows, s.kv_heads, capacity, s.dim).transpose(1, 2) for _ in range(2)] for _ in range(count)]
        self.positions = torch.tensor(lengths, device="cuda")
        self.slots, self.seen = torch.arange(rows, device="cuda"), (self.positions + 1).int()
        angle = torch.randn(rows, 1, s.dim // 2, device="cuda").repeat(1, 1, 2)
        self.cos, self.sin = angle.cos().bfloat16(), angle.sin().bfloat16()
        self.x = new(rows, 1, s.hidden)
        self.weight_bytes = 2 * sum(t.numel() for t in self.w[0].values())
        self.cache_bytes = 4 * kv * sum(lengths)

    def whole(self, x, i):
        w, (k, v) = self.w[i], self.caches[i]
        return self.p["decode"].decoder_layer(
            x, self.norm, w["q"], None, w["k"], None, w["v"], None, self.head_norm, self.head_norm, self.cos, self.sin, k, v,
            self.positions, w["o"], None, self.norm, w["gate"], None, w["up"], None, w["down"], None, EPS, EPS, self.s.dim**-0.5,
            -1, "silu", True,
        )  # fmt: skip

    def product(self, few):
        return (lambda x, w: self.p["linear"].linear(x, w, None)) if few else torch.nn.functional.linear

    def parts(self, state, i, few):
        s, w, (k_cache, v_cache), product, norm = self.s, self.w[i], self.caches[i], self.product(few), self.p["norm"]
        heads = lambda t: t.view(self.rows, 1, -1, s.dim)
        x, residual = state
        y, h = norm.add_rms_norm(x, residual, self.norm, EPS, 0.0, "llama")
        q, k, v = (heads(product(y, w[name])) for name in ("q", "k", "v"))
        if self.head_norm is not None:
            q, k = (norm.rms_norm(t, self.head_norm, EPS, 0.0, "llama") for t in (q, k))
        q, k = self.p["rotary"].rotary(q.transpose(1, 2), k.transpose(1, 2), self.cos, self.sin, s.dim, False)
        for cache, fresh in ((k_cache, k.transpose(1, 2)), (v_cache, v)):
            cache.index_put_((self.slots, self.positions), fresh.squeeze(1))
        out, _ = self.p["attention"].attention_decode(
            q.transpose(1, 2), k_cache, v_cache, None, None, self.seen, None, None, None, None, s.dim**-0.5, True, -1, -1, 0, 0.0, 0
        )
        z, residual = norm.add_rms_norm(product(out.reshape(self.rows, 1, -1), w["o"]), h, self.norm, EPS, 0.0, "llama")
        return product(self.p["mlp"].swiglu(product(z, w["gate"]), product(z, w["up"])), w["down"]), residual

    def products(self, i, few):
        product, inputs = self.product(few), self.inputs
        for name, w in self.w[i].items():
            product(inputs[name], w)

    # Each of a layer's products by itself: us of each by the linear package and by torch's library.
    def singles(self):
        found = {}
        for name, w in self.w[0].items():
            x = torch.randn(self.rows, w.shape[1], device="cuda").bfloat16()
            for few in (True, False):
                product = self.product(few)
                work = lambda product=product, name=name, x=x: [product(x, w[name]) for w in self.w]
                found[f"{name}:{'few' if few else 'torch'}"] = median_us(work, len(self.w))
        return found

    def run(self, form):
        if form == "whole":
            x = self.x
            for i in range(len(self.w)):
                x = self.whole(x, i)
            return x
        kind, few = form.split(":")
        if kind == "products":
            self.inputs = {name: torch.randn(self.rows, w.shape[1], device="cuda").bfloat16() for name, w in self.w[0].items()}
            return lambda: [self.products(i, few == "few") for i in range(len(self.w))]
        state = (self.x, torch.zeros_like(self.x))
        for i in range(len(self.w)):
            state = self.parts(state, i, few == "few")
        return state[0] + state[1]


def median_us(work, layers: int) -> float:
    return replay_us(captured(work), repeats=20) / layers


def lengths_of(context: str, rows: int) -> list[int]:
    draw = random.Random(38)
    return [draw.randint(64, 4096) for _ in range(rows)] if context == "mixed" else [int(context)] * rows


def profile(work, layers: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda r: -r.self_device_time_total)
    total = sum(r.self_device_time_total for r in rows) / 3 / layers
    print(f"    kernels {total:.1f} us a layer, {sum(r.count for r in rows) / 3 / layers:.1f} launches", flush=True)
    for r in rows[:14]:
        print(f"    {r.self_device_time_total / 3 / layers:7.2f} us {r.count / 3 / layers:5.2f} x {r.key[:110]}", flush=True)


def main() -> None:
    split = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--shapes", type=split, default=["Qwen3-0.6B", "Llama-1B", "Llama-3B", "Llama-8B"])
    parser.add_argument("--rows", type=split, default=["4", "8", "12", "16"])
    parser.add_argument("--contexts", type=split, default=["576", "mixed"])
    parser.add_argument("--forms", type=split, default=["whole", "parts:few", "parts:torch", "products:few", "products:torch"])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--singles", action="store_true", help="each product by itself, too")
    args = parser.parse_args()
    torch.manual_seed(0)
    packages = {name: ops(args.packages, name) for name in ("decode", "linear", "norm", "rotary", "attention", "mlp")}
    print(f"{'':36}{'floor':>8}" + "".join(f"{form:>16}" for form in args.forms) + "   us a layer", flush=True)
    for name in args.shapes:
        for rows in map(int, args.rows):
            for context in args.contexts:
                layers = Layers(packages, SHAPES[name], args.layers, rows, lengths_of(context, rows))
                line, works = [], []
                with torch.no_grad():
                    results = {}
                    for form in args.forms:
                        if form.startswith("products"):
                            work = layers.run(form)
                        else:
                            work = lambda form=form: layers.run(form)
                            results[form] = work().double()
                        line.append(median_us(work, args.layers))
                        works.append(work)
                    expected = results.get("whole", results.get("parts:torch"))
                    for form, got in results.items():
                        error = float((got - expected).norm() / expected.norm())
                        if not error < 0.05:  # eight layers of bfloat16, each with sums of another order
                            raise SystemExit(f"{name}, {rows} rows, {context}: expected {form}'s values as whole; got an error of {error}")
                floor = (layers.weight_bytes + layers.cache_bytes) / BYTES_A_US
                print(f"{name:12}{rows:4} rows, context {context:>6}{floor:8.1f}" + "".join(f"{us:16.1f}" for us in line), flush=True)
                if args.singles and context == args.contexts[0]:
                    with torch.no_grad():
                        print("    " + ", ".join(f"{name} {us:.1f}" for name, us in layers.singles().items()), flush=True)
                if args.profile:
                    with torch.no_grad():
                        for form, work in zip(args.forms, works):
                            print(f"  {form}", flush=True)
                            profile(work, args.layers)
                del layers, works
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
