"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

CPU_ONLY = ("moe_experts_packed",)

WIDE = r"combine_rows<.*BFloat16, true>"

# float16's rounding of h beside 128 sums; after the products, where nothing waits for it.
SPILLS = {r"activate_product<.*Silu.*Half": 108}

SWIGLU = ("swiglu", 1.0, float("inf"), False, False, False)
OAI = ("swiglu_oai", 1.702, 7.0, True, True, False)
LLAMA4 = ("swiglu", 1.0, float("inf"), False, True, True)


def routing(x, experts, top_k):
    """Fixed, unequal, one expert empty, one assignment in fifty nobody's."""
    import torch  # here: what reads WIDE and SPILLS needs none

    tokens = x.shape[0]
    index = (torch.arange(tokens * top_k, device=x.device) ** 2 // 3) % (experts - 1)
    index[::50] = experts
    return index.view(tokens, top_k), torch.rand(tokens, top_k, device=x.device)


def cases(ops, random, names):
    many, many_dy = random(333, 256), random(333, 256)
    found = {}
    for name, experts, top_k, inner, options, bias in (
        ("", 8, 2, 128, SWIGLU, False),
        ("a decode step", 8, 4, 136, SWIGLU, True),
        ("gpt-oss", 6, 4, 72, OAI, True),
        ("llama 4", 5, 1, 96, LLAMA4, False),
        ("odd", 7, 3, 47, SWIGLU, True),
    ):
        tokens = 5 if "step" in name else len(many)
        x, dy = many[:tokens], many_dy[:tokens]
        index, weights = routing(x, experts, top_k)
        up, down = (experts, 2 * inner, 256), (experts, 256, inner)
        if options[4]:
            up, down = (up[0], up[2], up[1]), (down[0], down[2], down[1])
        w_up, w_down = random(*up) / 16, random(*down) / 8
        b_up, b_down = (random(experts, 2 * inner), random(experts, 256)) if bias else (None, None)
        inputs = (x, index, weights, w_up, b_up, w_down, b_down)
        saved = ops.moe_experts_train(*inputs, *options)[1:]
        used = int(saved[3][-1])  # rows past the last expert's are nobody's, and hold anything
        saved[0][used:].zero_()

        def forward(op, inputs=inputs, options=options):
            return op(*inputs, *options)

        def train(op, inputs=inputs, options=options, used=used):
            y, h, order, slots, offsets = op(*inputs, *options)
            return y, h[:used], order[:used], slots, offsets

        def backward(op, inputs=inputs, options=options, saved=saved, dy=dy):
            return op(dy, *inputs, *saved, *options, True)

        def in_place(op, inputs=inputs, options=options, saved=saved, dy=dy):
            return op(dy, *inputs, saved[0].clone(), *saved[1:], *options, True)

        calls = {"moe_experts": forward, "moe_experts_train": train, "moe_experts_bwd": backward, "moe_experts_bwd_": in_place}
        for op, call in calls.items():
            key = f"{op}, {name}" if name else op
            found[key] = lambda op=op, call=call: call(getattr(ops, op))
    return found


def large(ops, x, random):
    # Transposed weights: the path for few tokens, whose sums have another order, does not take them.
    experts, inner, options = 4, 64, ("swiglu", 1.0, float("inf"), False, True, False)
    w_up, w_down = random(experts, x.shape[1], 2 * inner) / 32, random(experts, inner, x.shape[1]) / 8

    def call(t):
        import torch

        index = torch.arange(t.shape[0], device=t.device).flip(0).unsqueeze(1) % experts
        return ops.moe_experts(t, index, torch.ones(index.shape, device=t.device), w_up, None, w_down, None, *options)

    return {"moe_experts": (x, call)}
