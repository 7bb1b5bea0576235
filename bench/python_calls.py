"""What one call of an op costs in Python on tensors too small to matter: microseconds, the best of many, one thread; and what
`import hotswap` costs beside torch.

    PYTHONPATH=python HOTSWAP_PACKAGES=build/packages python bench/python_calls.py [--csv FILE]
"""

import argparse
import time

import torch
from results import Results, add_flags
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import_began = time.perf_counter()
import hotswap  # noqa: E402

import_took = time.perf_counter() - import_began

norm, activation, mlp = (hotswap.load(name) for name in ("norm", "activation", "mlp"))


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
    report.add(kind="call", what="import hotswap", ours=import_took * 1e3, unit="ms")
    report.write()


if __name__ == "__main__":
    main()
