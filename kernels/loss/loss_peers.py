"""Losses on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

import torch
from gpu_common import memory_of


def run(c):
    F, loss, vocab = torch.nn.functional, c.ops["loss"], 128256
    options, L = (-100, 0.0, 0.0, 0.0, "mean"), c.liger
    if c.wants("cross_entropy_fwd_"):
        rows = 8192
        target, one = torch.randint(0, vocab, (rows,), device="cuda"), torch.ones((), device="cuda")
        z = (torch.randn(rows, vocab, device="cuda") * 3).bfloat16()
        leaf = z.clone().requires_grad_()

        def both(fn):
            def call(_):
                leaf.grad = None
                fn(leaf).backward()

            return call

        def at_once(_):  # gradient_in_forward, and what backward does with a dloss of 1
            loss.scale_gradient_(loss.cross_entropy_fwd_bwd(leaf.detach(), target, *options)[2], one)

        def two_passes(_):
            lse = loss.cross_entropy_fwd(leaf.detach(), target, *options)[1]
            loss.cross_entropy_bwd(one, leaf.detach(), target, lse, *options)

        plain = lambda z: F.cross_entropy(z.float(), target)
        peers = {"ours": at_once, "ours, in two passes": two_passes, "torch": both(lambda z: F.cross_entropy(z, target)),
                 "torch.compile": both(c.compiled(plain))}  # fmt: skip
        c.run("cross_entropy_fwd_bwd", f"{rows}x{vocab}", peers, 3 * z.nbytes, "1450 us",
              memory=memory_of(peers, z.nbytes, leaf))  # fmt: skip
        # Ours and Liger's put the gradient where the logits were: from the second call on those are small numbers.
        peers = {
            "ours": lambda i: loss.cross_entropy_fwd_(z, target, *options),
            "transformers": both(plain),
            "Liger": L and both(lambda z: L.LigerCrossEntropyFunction.apply(z, target, None)[0]),
        }
        c.run("cross_entropy_fwd_", f"{rows}x{vocab}", peers, 2 * z.nbytes, "1300 us", memory=memory_of(peers, 0, leaf))
        del z, leaf, peers
        torch.cuda.empty_cache()
    for rows in (4096, 8192, 16384, 32768):
        if c.wants("linear_cross_entropy_fwd", f"{rows}x4096x{vocab}"):
            linear_cross_entropy(c, rows, 4096, vocab, options)
            torch.cuda.empty_cache()


def linear_cross_entropy(c, rows, dim, vocab, options):
    F, loss, L = torch.nn.functional, c.ops["loss"], c.liger
    target = torch.randint(0, vocab, (rows,), device="cuda")
    h = torch.randn(rows, dim, device="cuda").bfloat16().requires_grad_()
    w = (torch.randn(vocab, dim, device="cuda") / 64).bfloat16().requires_grad_()

    def both(fn):
        def call(_):
            h.grad = w.grad = None
            fn().backward()

        return call

    def ours(chunk_bytes):
        return lambda i: loss.linear_cross_entropy_fwd(
            h.detach(), w.detach(), None, target, *options, False, chunk_bytes
        )

    peers = {"ours": ours(0), "ours, 64 MiB": ours(64 << 20)}
    if rows == 8192:
        peers["transformers"] = both(lambda: F.cross_entropy(F.linear(h, w).float(), target))
    if L:
        peers["Liger"] = both(lambda: L.LigerFusedLinearCrossEntropyFunction.apply(h, w, target)[0])
    wanted = {4096: "21500 us", 8192: "41000 us", 16384: "80000 us", 32768: "165000 us"}[rows]
    c.run("linear_cross_entropy_fwd", f"{rows}x{dim}x{vocab}", peers, target=wanted,
          memory=memory_of(peers, (h.numel() + w.numel()) * 2, h, w))  # fmt: skip
