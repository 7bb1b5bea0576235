"""What one call of an op costs in Python on tensors too small to matter: microseconds, the best of many, one thread; and what
`import hotswap` costs beside torch.

    HOTSWAP_PACKAGES=build/packages python -m bench python_calls [--csv FILE]
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.results import Results, add_flags  # noqa: E402

import_began = time.perf_counter()
import hotswap  # noqa: E402

import_took = time.perf_counter() - import_began

norm, activation, mlp, probability, dyt, loss = (
    hotswap.load(name) for name in ("norm", "activation", "mlp", "probability", "dyt", "loss")
)


def microseconds(call, calls=2000, sets=15) -> float:
    """Of processor time: what else runs on the machine does not count as ours."""
    for _ in range(200):
        call()
    best = float("inf")
    for _ in range(sets):
        start = time.process_time()
        for _ in range(calls):
            call()
        best = min(best, (time.process_time() - start) / calls)
    return best * 1e6


def step(call, leaves):
    return lambda: torch.autograd.grad(call(*leaves).sum(), leaves)


def steps() -> dict:
    """name -> (ours, the peer's name, the peer's, leaves...)."""
    leaf = lambda *shape: torch.randn(*shape, requires_grad=True)
    x, w, target = leaf(1, 64), leaf(64), torch.tensor([3])
    log_q, log_p = leaf(1, 64).log_softmax(-1).detach().requires_grad_(), torch.randn(1, 64).log_softmax(-1)
    return {
        "rms_norm": (lambda x, w: norm.rms_norm(x, w, 1e-6, 0.0, "llama"), "F.rms_norm", lambda x, w: F.rms_norm(x, (64,), w, 1e-6), x, w),
        "layer_norm": (lambda x, w: norm.layer_norm(x, w, w, 1e-6), "F.layer_norm", lambda x, w: F.layer_norm(x, (64,), w, w, 1e-6), x, w),
        "silu": (activation.silu, "F.silu", F.silu, x),
        "swiglu": (mlp.swiglu, "F.silu(gate) * up", lambda gate, up: F.silu(gate) * up, x, leaf(1, 64)),
        "softmax": (probability.softmax, "softmax", lambda x: x.softmax(-1), x),
        "kl_div": (lambda x: probability.kl_div(x, log_p, log_target=True), "F.kl_div", lambda x: F.kl_div(x, log_p, reduction="batchmean", log_target=True), log_q),
        "dyt": (lambda x, a, w: dyt.dyt(x, a, w, w), "four ops", lambda x, a, w: (a * x).tanh() * w + w, x, leaf(1), w),
        "cross_entropy": (lambda x: loss.cross_entropy(x, target), "F.cross_entropy", lambda x: F.cross_entropy(x, target), x),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    report = Results(parser.parse_args())
    torch.set_num_threads(1)
    x, gate, up, both = (torch.randn(1, n) for n in (64, 64, 64, 128))
    stock = LlamaRMSNorm(64)
    weight, ours = stock.weight, hotswap.kernelize(LlamaRMSNorm(64))
    torch_norm = ("F.rms_norm", lambda: F.rms_norm(x, (64,), weight, 1e-6))
    torch_gate = ("F.silu(gate) * up", lambda: F.silu(gate) * up)
    cases = {
        "rms_norm": (lambda: norm.rms_norm(x, weight, 1e-6, 0.0, "llama"), *torch_norm),
        "silu_and_mul": (lambda: activation.silu_and_mul(both), *torch_gate),
        "swiglu": (lambda: mlp.swiglu(gate, up), *torch_gate),
        "LlamaRMSNorm": (lambda: ours(x), "stock", lambda: stock(x)),
    }
    for name, (call, peer_name, peer) in cases.items():
        for mode in (torch.inference_mode, torch.no_grad):
            with mode():
                times = dict(ours=microseconds(call), peer=microseconds(peer))
            report.add(
                kind="call", what=f"{name}, {mode.__name__}", shape="1x64", dtype="float32", threads=1, unit="us",
                peer_name=peer_name, **times,
            )  # fmt: skip
    for name, (ours, peer_name, peer, *leaves) in steps().items():
        times = {side: microseconds(step(call, leaves), 500) for side, call in (("ours", ours), ("peer", peer))}
        report.add(
            kind="call", what=f"{name}, forward and backward", shape="1x64", dtype="float32", threads=1, unit="us",
            peer_name=peer_name, **times,
        )  # fmt: skip
    report.add(kind="call", what="import hotswap", ours=import_took * 1e3, unit="ms")
    report.write()


if __name__ == "__main__":
    main()
