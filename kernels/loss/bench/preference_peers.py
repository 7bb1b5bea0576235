"""Preference losses and distillation over the head of a Llama of 8B beside Liger, and beside the three matrix products that
each of them needs at least; bench/peers.py runs it."""

import torch
from bench.lib.gpu_common import memory_of, step_of

PAIRS, TIME, DIM, VOCAB = 8, 1024, 4096, 128256


def run(c):
    names = ("dpo", "dpo_known_reference", "orpo", "simpo", "cpo", "kto", "grpo", "distillation")
    rows, shape = PAIRS * TIME, f"{PAIRS}x{TIME}x{DIM}x{VOCAB}"
    if not c.wants_some([f"{name}_step" for name in names], shape) or c.liger is None:
        return
    c.face("loss")  # and where hotswap is
    import hotswap.chunked_loss as ours
    import liger_kernel.chunked_loss as liger

    random = lambda *sizes: torch.randn(*sizes, device="cuda").bfloat16()
    x = random(PAIRS, TIME, DIM).requires_grad_()
    w = (random(VOCAB, DIM) / 64).requires_grad_()
    other_x, other_w = random(PAIRS, TIME, DIM), random(VOCAB, DIM) / 64
    target = torch.randint(0, VOCAB, (PAIRS, TIME), device="cuda")
    reference = dict(ref_input=other_x, ref_weight=other_w)
    good = torch.tensor([True, False] * (PAIRS // 2), device="cuda")
    mask, advantages = torch.ones_like(target), torch.randn(PAIRS, device="cuda")
    logps = torch.randn(PAIRS, TIME, device="cuda") - 11

    def pairs(name, products, **more):
        return name, products, {}, lambda loss: loss(w, x, target, **more)

    def known_reference(loss):  # Liger has no argument for log-probabilities that were made beforehand
        return loss(w, x, target, **(dict(ref_logps=logps.sum(1)) if isinstance(loss, ours.LigerFusedLinearDPOLoss) else reference))

    cases = {
        "dpo": pairs("DPO", 4, **reference),
        "dpo_known_reference": ("DPO", 3, {}, known_reference),
        "orpo": pairs("ORPO", 3),
        "simpo": pairs("SimPO", 3),
        "cpo": pairs("CPO", 3),
        "kto": ("KTO", 4, dict(use_ref_model=True), lambda loss: loss(x, w, target, preference_labels=good, **reference)),
        "grpo": ("GRPO", 3, {}, lambda loss: loss(x, w, target, mask, advantages, ref_per_token_logps=logps, old_per_token_logps=logps)),
        "distillation": ("JSD", 4, {}, lambda loss: loss(x.view(rows, DIM), w, other_x.view(rows, DIM), other_w, target.view(-1))),
    }  # fmt: skip
    for op, (name, products, options, call) in cases.items():
        if not c.wants(f"{op}_step", shape):
            continue

        def step(module, name=name, options=options, call=call):
            loss = getattr(module, f"LigerFusedLinear{name}Loss")(**options)

            def of(*_):
                value = call(loss)
                return value[0] if isinstance(value, tuple) else value

            return step_of(of, [(x, w)] * c.timer.sets)

        z = random(rows, VOCAB)
        flat = x.detach().view(rows, DIM)

        def alone(_, products=products, z=z):
            z @ w.detach(), z.T @ flat
            for _ in range(products - 2):
                flat @ w.detach().T

        peers = {"ours": step(ours), "Liger": step(liger)}
        memory = memory_of(peers, (x.numel() + w.numel()) * 2, x, w)
        c.run(f"{op}_step", shape, {**peers, f"the {products} products": alone}, memory=memory, least=1)
        del z
        torch.cuda.empty_cache()
