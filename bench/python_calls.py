"""What one call of an op costs in Python on tensors too small to matter: microseconds, the best of many, one thread; and what
`import hotswap` costs beside torch.

    PYTHONPATH=python HOTSWAP_PACKAGES=build/packages python bench/python_calls.py
"""

import time

import torch
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
    torch.set_num_threads(1)
    x, gate, up, both = (torch.randn(1, n) for n in (64, 64, 64, 128))
    stock = LlamaRMSNorm(64)
    weight, ours = stock.weight, hotswap.kernelize(LlamaRMSNorm(64))
    cases = {
        "rms_norm": lambda: norm.rms_norm(x, weight, 1e-6, 0.0, "llama"),
        "silu_and_mul": lambda: activation.silu_and_mul(both),
        "swiglu": lambda: mlp.swiglu(gate, up),
        "LlamaRMSNorm, swapped": lambda: ours(x),
        "LlamaRMSNorm, stock": lambda: stock(x),
        "F.rms_norm": lambda: F.rms_norm(x, (64,), weight, 1e-6),
        "F.silu(gate) * up": lambda: F.silu(gate) * up,
    }
    print(f"{'':24}{'inference_mode':>16}{'no_grad':>10}")
    for name, call in cases.items():
        costs = []
        for mode in (torch.inference_mode, torch.no_grad):
            with mode():
                costs.append(microseconds(call))
        print(f"{name:24}{costs[0]:16.1f}{costs[1]:10.1f}")
    print(f"import hotswap: {import_took * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
