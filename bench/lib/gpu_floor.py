"""What a training step of a Llama by our kernels cannot be faster than, measured beside it by `gpu_model.py --adamw --floor`.

Its matrix products by torch, attention and linear cross-entropy by our packages, on random numbers: each alone, and together
in a step's order, with nothing between them. What remains, norms, gates, rotary embedding, sums and AdamW, is counted in
bytes, at the rate of a copy.
"""

import statistics
import time

INPUT = dict(q="q", k="q", v="q", o="o", gate="gate", up="gate", down="down")  # whose input a projection reads
PARTS = ("products", "attention", "loss", "together")
SECONDS = 0.8  # of each part in each turn, behind half as long untimed


class Step:
    """The tensors and the calls of one step. config: of a Llama; a layer's weights and their gradients are its own."""

    def __init__(self, config: dict, rows: int, columns: int, checkpointed: bool):
        import hotswap
        import torch

        self.torch, self.checkpointed = torch, checkpointed
        self.loss_op = hotswap.load("loss")._ops.ops.linear_cross_entropy_fwd
        self.flash = hotswap.load("attention").flash_attn_func
        c, n = config, rows * columns
        hidden, inner, dim, vocab = c["hidden_size"], c["intermediate_size"], c["head_dim"], c["vocab_size"]
        heads, key_heads = c["num_attention_heads"], c["num_key_value_heads"]
        shapes = dict(q=(heads * dim, hidden), k=(key_heads * dim, hidden), v=(key_heads * dim, hidden), o=(hidden, heads * dim),
                      gate=(inner, hidden), up=(inner, hidden), down=(hidden, inner))  # fmt: skip
        random = lambda *shape, scale=1.0: torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(scale)
        self.weights = [{k: random(*s, scale=0.02) for k, s in shapes.items()} for _ in range(c["num_hidden_layers"])]
        self.dweights = [{k: torch.empty_like(w) for k, w in layer.items()} for layer in self.weights]
        self.x = {k: random(n, shapes[k][1]) for k in set(INPUT.values())}
        self.y, self.dy = ({k: random(n, s[0], scale=scale) for k, s in shapes.items()} for scale in (1.0, 1e-3))
        self.dx = {k: torch.empty_like(x) for k, x in self.x.items()}
        self.qkv = [random(rows, columns, h, dim).requires_grad_() for h in (heads, key_heads, key_heads)]
        self.out = self.flash(*self.qkv, causal=True)
        self.dout = random(*self.out.shape)
        self.h, self.head = random(n, hidden), random(vocab, hidden, scale=hidden**-0.5)
        self.target = torch.randint(0, vocab, (n,), device="cuda")
        products = sum(a * b for a, b in shapes.values())
        again = (products - inner * hidden) * checkpointed  # a second forward ends before down's product
        self.flops = {"products": 2 * n * c["num_hidden_layers"] * (3 * products + again), "loss": 6 * n * vocab * hidden}

    def forward(self, layer: int, attention=True, products=True, again=False):
        for name, w in self.weights[layer].items():
            if products and not (again and name == "down"):
                self.torch.mm(self.x[INPUT[name]], w.t(), out=self.y[name])
            if name == "v" and attention:
                with self.torch.no_grad():
                    self.flash(*self.qkv, causal=True)

    def backward(self, layer: int, attention=True, products=True):
        torch, written = self.torch, set()
        for name, w in reversed(self.weights[layer].items()):
            if name == "v" and attention:
                torch.autograd.grad(self.out, self.qkv, self.dout, retain_graph=True)
            if products:
                dy, place = self.dy[name], INPUT[name]
                torch.mm(dy.t(), self.x[place], out=self.dweights[layer][name])
                if place in written:  # of one input the first writes, the others add, as ours do
                    torch.addmm(self.dx[place], dy, w, out=self.dx[place])
                else:
                    torch.mm(dy, w, out=self.dx[place])
                written.add(place)

    def loss(self):
        self.loss_op(self.h, self.head, None, self.target, -100, 0.0, 0.0, 0.0, "mean", False, 0)

    def layers(self, **what):
        count = range(len(self.weights))
        for i in count:
            self.forward(i, **what)
        yield
        for i in reversed(count):
            if self.checkpointed:
                self.forward(i, **what, again=True)
            self.backward(i, **what)

    def run(self, part: str):
        if part == "loss":
            return self.loss()
        for _ in self.layers(attention=part != "products", products=part != "attention"):
            if part == "together":
                self.loss()


def bytes_of_the_rest(config: dict, n: int, checkpointed: bool) -> dict:
    """Bytes that a step reads and writes beside products, attention and loss, n tokens, bfloat16."""
    c, number = config, 2
    hidden, layers, head = c["hidden_size"], c["num_hidden_layers"], c["vocab_size"] * c["hidden_size"]
    x, inner = n * hidden * number, n * c["intermediate_size"] * number
    rotated = 2 * n * (c["num_attention_heads"] + c["num_key_value_heads"]) * c["head_dim"] * number
    twice = 1 + checkpointed
    weights = layers * hidden * ((2 * c["num_attention_heads"] + 2 * c["num_key_value_heads"]) * c["head_dim"] + 3 * c["intermediate_size"] + 2)
    weights += hidden + head * (1 if c["tie_word_embeddings"] else 2)
    embedding = 4 * x + number * head * (1 + 3 * c["tie_word_embeddings"])  # its gradient cleared; added to the head's
    return {
        "norms and residuals": layers * (twice * (2 * x + 4 * x) + 3 * x + 8 * x) + 5 * x,
        "gates": layers * inner * (3 * twice + 6 - checkpointed),
        "rotary": layers * rotated * (twice + 1),
        "embedding": embedding,
        "AdamW": 7 * number * weights,
    }


def measured(args, config: dict, checkpointed: bool, wait_for_turn) -> dict:
    """Milliseconds of each part in each turn with clock and power, and what they are measured by."""
    import torch
    from bench.lib.gpu_meter import Meter

    found, flops, rates, meter = {part: [] for part in PARTS}, {}, [], None
    for _ in range(args.turns):
        wait_for_turn()
        meter = meter or Meter()
        torch.manual_seed(0)
        step = Step(config, args.rows, args.columns, checkpointed)
        flops = step.flops
        for part in PARTS:
            found[part].append(timed(lambda part=part: step.run(part), meter))
            print(part, "ms, MHz, W:", *(f"{n:.2f}" for n in found[part][-1]), flush=True)
        del step
        source, target = (torch.randint(0, 256, (1 << 30,), dtype=torch.uint8, device="cuda") for _ in range(2))
        rates.append(2 * source.numel() / (timed(lambda: target.copy_(source), meter)[0] / 1e3))
        del source, target
        torch.cuda.empty_cache()
    rate, rest = statistics.median(rates), bytes_of_the_rest(config, args.rows * args.columns, checkpointed)
    return {"parts": found, "flops": flops, "copy": rate, "rest": {name: moved / rate * 1e3 for name, moved in rest.items()}}


def timed(call, meter) -> tuple[float, float, float]:
    """Milliseconds a call, MHz, W."""
    import torch

    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(2, round(SECONDS / (time.perf_counter() - start)))
    for _ in range(count // 2):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    end = time.perf_counter()
    return ((end - start) * 1e3 / count, *meter.between(start, end))


def add_rows(found: dict, what: str, shape: str, report) -> None:
    """A row a part, and one of the floor: what is done together, and the rest at a copy's rate."""
    common = dict(kind="model", shape=shape, dtype="bfloat16", unit="ms")
    median = {part: statistics.median(turn[0] for turn in turns) for part, turns in found["parts"].items()}
    for part, turns in found["parts"].items():
        load = "{:.0f} MHz {:.0f} W".format(*(statistics.mean(turn[i] for turn in turns) for i in (1, 2)))
        report.add(what=f"{what}, floor: {part}", ours=median[part], load=load, **common)
    for part, ms in found["rest"].items():
        report.add(what=f"{what}, floor: {part} at a copy's {found['copy'] / 1e9:.0f} GB/s", ours=ms, **common)
    floor = median["together"] + sum(found["rest"].values())
    report.add(what=f"{what}, floor", ours=floor, **common)
    rates = ", ".join(f"{part} {flops / median[part] / 1e9:.0f} TFLOP/s" for part, flops in found["flops"].items())
    print(f"floor of {shape}: {floor:.1f} ms; {rates}; turns {found['parts']}")
    report.write()
