"""Losses on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

import torch
from bench.lib.gpu_common import memory_of

FEW = 64  # rows and words whose gradients are checked


OPTIONS = (-100, 0.0, 0.0, 0.0, "mean")  # of a plain cross-entropy
LLAMA = 4096, 128256  # its hidden size and its words


def run(c):
    for rows, words in ((16384, 1024), (8192, 32000), (8192, LLAMA[1])):
        if c.wants_some(("cross_entropy_fwd_", "cross_entropy_fwd_bwd"), f"{rows}x{words}"):
            cross_entropy(c, rows, words)
            torch.cuda.empty_cache()
    for rows in (4096, 8192, 16384, 32768):
        if c.wants("linear_cross_entropy_fwd", f"{rows}x{LLAMA[0]}x{LLAMA[1]}"):
            linear_cross_entropy(c, rows, *LLAMA)
            torch.cuda.empty_cache()


def cross_entropy(c, rows, words):
    F, loss, L = torch.nn.functional, c.ops["loss"], c.liger
    shape = f"{rows}x{words}"
    target, one = torch.randint(0, words, (rows,), device="cuda"), torch.ones((), device="cuda")
    z = (torch.randn(rows, words, device="cuda") * 3).bfloat16()
    leaf = z.clone().requires_grad_()

    def both(fn):
        def call(_):
            leaf.grad = None
            fn(leaf).backward()

        return call

    def at_once(_):  # gradient_in_forward, and what backward does with a dloss of 1
        loss.scale_gradient_(loss.cross_entropy_fwd_bwd(leaf.detach(), target, *OPTIONS)[2], one)

    def two_passes(_):
        lse = loss.cross_entropy_fwd(leaf.detach(), target, *OPTIONS)[1]
        loss.cross_entropy_bwd(one, leaf.detach(), target, lse, *OPTIONS)

    def check(fwd):  # before z is overwritten
        few = torch.arange(FEW, device="cuda")
        expected = z[:FEW].double().softmax(-1)
        expected[few, target[:FEW]] -= 1
        got_loss, _, *made = fwd(z.clone(), target, *OPTIONS)
        loss_of = lambda z, target: F.cross_entropy(z.float(), target, reduction="sum")
        total = sum(loss_of(*part) for part in zip(z.split(512), target.split(512), strict=True))
        return [got_loss, made[-1][:FEW] * rows], [total / rows, expected]

    plain = lambda z: F.cross_entropy(z.float(), target)
    peers = {"ours": at_once, "ours, in two passes": two_passes, "torch": both(lambda z: F.cross_entropy(z, target)),
             "torch.compile": both(c.compiled(plain))}  # fmt: skip
    c.run("cross_entropy_fwd_bwd", shape, peers, 3 * z.nbytes, "1450 us" if words == LLAMA[1] else "",
          lambda: check(loss.cross_entropy_fwd_bwd), memory=memory_of(peers, z.nbytes, leaf))  # fmt: skip

    def in_place(z, *rest):
        return *loss.cross_entropy_fwd_(z, *rest), z

    checked = check(in_place)
    # Ours and Liger's put the gradient where the logits were: from the second call on those are small values.
    peers = {
        "ours": lambda i: loss.cross_entropy_fwd_(z, target, *OPTIONS),
        "transformers": both(plain),
        "Liger": L and both(lambda z: L.LigerCrossEntropyFunction.apply(z, target, None)[0]),
    }
    c.run("cross_entropy_fwd_", shape, peers, 2 * z.nbytes, "1300 us" if words == LLAMA[1] else "", lambda: checked,
          memory=memory_of(peers, 0, leaf))  # fmt: skip


def linear_cross_entropy(c, rows, dim, vocab):
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
            h.detach(), w.detach(), None, target, *OPTIONS, False, chunk_bytes
        )

    peers = {"ours": ours(0), "ours, 64 MiB": ours(64 << 20)}

    def check():
        few = torch.arange(FEW, device="cuda")
        with torch.no_grad():
            lse = torch.cat([(part.float() @ wide.T).logsumexp(-1) for wide in [w.float()] for part in h.split(1024)])
            total = (lse - (h.float() * w[target].float()).sum(-1)).mean()
            p = (h[:FEW].float() @ w.float().T - lse[:FEW, None]).exp()
            p[few, target[:FEW]] -= 1
            words = (h.float() @ w[:FEW].float().T - lse[:, None]).exp()
            words -= (target[:, None] == few).float()
            expected = [total, p @ w.float() / rows, words.T @ h.float() / rows]
        each = [peers[name](0) for name in peers if name.startswith("ours")]
        return [t for made in each for t in (made[0], made[2][:FEW], made[3][:FEW])], expected * len(each)

    if rows == 8192:
        peers["transformers"] = both(lambda: F.cross_entropy(F.linear(h, w).float(), target))
    if L:
        peers["Liger"] = both(lambda: L.LigerFusedLinearCrossEntropyFunction.apply(h, w, target)[0])
    wanted = {4096: "21500 us", 8192: "41000 us", 16384: "80000 us", 32768: "165000 us"}[rows]
    c.run("linear_cross_entropy_fwd", f"{rows}x{dim}x{vocab}", peers, target=wanted, check=check,
          memory=memory_of(peers, (h.numel() + w.numel()) * 2, h, w))  # fmt: skip
