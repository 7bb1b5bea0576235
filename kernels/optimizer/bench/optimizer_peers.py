"""AdamW's update of a model's parameters on a GPU beside torch's fused one; bench/peers.py runs it."""

import torch

# A short list, Llama-1B's parameters, and one large tensor: shapes, and how many there are of each.
LISTS = {
    "SmolLM2-135M": [((49152, 576), 1), ((576, 576), 60), ((192, 576), 60), ((1536, 576), 90), ((576,), 61)],
    "Llama-1B": [((128256, 2048), 1), ((2048, 2048), 32), ((512, 2048), 32), ((8192, 2048), 48), ((2048,), 33)],
    "a head of 128256x4096": [((128256, 4096), 1)],
}
RATES = dict(lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.1, eps=1e-8)
# states -> dtypes of the parameter, of the averages and of the master, and whether they are rounded stochastically
STATES = {
    "float32": (torch.float32, torch.float32, None, False),
    "bfloat16": (torch.bfloat16, torch.bfloat16, None, False),
    "bfloat16, float32 master": (torch.bfloat16, torch.float32, torch.float32, False),
    "bfloat16, bfloat16 moments": (torch.bfloat16, torch.bfloat16, torch.float32, True),
    "bfloat16, stochastic": (torch.bfloat16, torch.bfloat16, None, True),
}


class Model:
    """Parameters, gradients and states, of which each side has its own."""

    def __init__(self, sizes, parameter, average, master):
        filled = lambda scale, dtype: [(torch.randn(s, device="cuda") * scale).to(dtype) for s, n in sizes for _ in range(n)]
        self.parameters, self.gradients = filled(0.02, parameter), filled(1e-3, parameter)
        self.averages, self.squares = filled(1e-4, average), [t.square() for t in filled(1e-3, average)]
        self.masters = [p.to(master) for p in self.parameters] if master else []
        self.steps = [torch.full((), 10.0, device="cuda") for _ in self.parameters]
        self.numel, self.scale = sum(p.numel() for p in self.parameters), torch.ones((), device="cuda")

    def moved(self):
        """Bytes that an update reads and writes: gradients are only read, and a parameter that has a master is only written."""
        each = self.gradients[0].element_size() + 4 * self.averages[0].element_size()
        each += self.parameters[0].element_size() * (1 if self.masters else 2) + 8 * bool(self.masters)
        return self.numel * each

    def ours(self, ops, seed):
        ops.adamw_(
            self.scale, self.parameters, self.gradients, self.averages, self.squares, self.masters, self.steps, RATES["lr"],
            RATES["beta1"], RATES["beta2"], RATES["eps"], RATES["weight_decay"], seed,
        )  # fmt: skip

    def torchs(self):
        """Its fused update has one dtype for all: a master needs the gradients in float32, and is copied back."""
        targets = self.masters or self.parameters
        gradients = [g.to(targets[0].dtype) for g in self.gradients]
        averages = self.averages if self.averages[0].dtype == targets[0].dtype else [t.to(targets[0].dtype) for t in self.averages]
        squares = self.squares if averages is self.averages else [t.to(targets[0].dtype) for t in self.squares]
        torch._fused_adamw_(targets, gradients, averages, squares, [], self.steps, amsgrad=False, maximize=False, **RATES)
        if self.masters:
            torch._foreach_copy_(self.parameters, self.masters)


def run(c):
    for name, sizes in LISTS.items():
        for states, (parameter, average, master, rounded) in STATES.items():
            if c.wants("adamw_", f"{name} {states}"):
                one_list(c, name, sizes, states, (parameter, average, master), 3 if rounded else None)
                torch.cuda.empty_cache()


def one_list(c, name, sizes, states, dtypes, seed):
    ops, ours, theirs = c.ops["optimizer"], Model(sizes, *dtypes), None
    if states != "bfloat16, stochastic":  # which torch has nothing like
        theirs = Model(sizes, *dtypes)

    def check():
        """One tensor in float64, as torch.optim.AdamW's documentation has the formula; bfloat16's rounding is what remains."""
        got = Model([(sizes[-1][0], 1)], *dtypes)
        p, g, m, v = (t[0].double() for t in (got.masters or got.parameters, got.gradients, got.averages, got.squares))
        step = got.steps[0].item()
        p = p * (1 - RATES["lr"] * RATES["weight_decay"])
        m, v = m.lerp(g, 1 - RATES["beta1"]), v * RATES["beta2"] + (1 - RATES["beta2"]) * g * g
        bias1, bias2 = 1 - RATES["beta1"] ** step, 1 - RATES["beta2"] ** step
        p = p - RATES["lr"] / bias1 * m / ((v / bias2).sqrt() + RATES["eps"])
        got.ours(ops, seed)
        return [got.parameters[0], got.averages[0], got.squares[0]], [p, m, v]

    c.run("adamw_", f"{name} {states}", {
        "ours": lambda i: ours.ours(ops, seed),
        "torch": theirs and (lambda i: theirs.torchs()),
    }, ours.moved(), "1.5 of torch" if states == "bfloat16" else "", check, dtype=states)  # fmt: skip
