"""The functions of a Mamba mixer on one thread of a CPU: ours beside transformers' own, in the shape of state-spaces/mamba-130m.

    HOTSWAP_PACKAGES=build/packages python -m bench mamba_ops [--length 512] [--turns 9] [--csv FILE]

Processor time, the least of turns in which both are called: what else runs on the machine does not count. Tokens lie as the model
hands them over, channels beside each other. What both return is compared before.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from transformers.models.mamba import modeling_mamba as stock

from hotswap import mamba as ours

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.results import Results, add_flags  # noqa: E402

CHANNELS, STATES, TAPS = 1536, 16, 4
TARGETS = {"selective_scan": 20.0, "causal_conv1d": 3.0}
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-6}  # of transformers' own roundings: delta's among them


def milliseconds(call) -> float:
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


def cases(length: int, dtype: torch.dtype) -> dict:
    def channel_last(channels):
        return torch.randn(1, length, channels).to(dtype).transpose(1, 2)

    x, z = channel_last(CHANNELS), channel_last(CHANNELS)
    weight, bias = torch.randn(CHANNELS, TAPS).to(dtype), torch.randn(CHANNELS).to(dtype)
    delta, a, d = torch.randn(1, CHANNELS, length).to(dtype), -torch.rand(CHANNELS, STATES) * 16, torch.randn(CHANNELS)
    b, c = channel_last(48 + 2 * STATES)[:, 48:].chunk(2, 1)  # parts of x_proj's result
    given = dict(z=z, delta_bias=torch.randn(CHANNELS) - 3, delta_softplus=True)
    return {
        "selective_scan": (
            lambda: ours.selective_scan_fn(x, delta, a, b, c, d, **given),
            lambda: stock.mamba_selective_scan(x, delta, a, b, c, d, **given),
            f"D{CHANNELS} L{length} N{STATES}",
        ),
        "causal_conv1d": (
            lambda: ours.causal_conv1d_fn(x, weight, bias, activation="silu"),
            lambda: stock.causal_conv1d_fn(x, weight, bias, activation="silu"),
            f"D{CHANNELS} L{length} W{TAPS}",
        ),
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--turns", type=int, default=9)
    add_flags(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report = Results(args)
    for dtype, tolerance in TOLERANCES.items():
        for what, (mine, theirs, shape) in cases(args.length, dtype).items():
            got, want = mine().double(), theirs().double()
            error = ((got - want).norm() / want.norm()).item()
            assert error <= tolerance, f"{what} {dtype}: expected what transformers returns within {tolerance:.1e}; got {error:.1e}"
            best = [min(times) for times in zip(*((milliseconds(mine), milliseconds(theirs)) for _ in range(args.turns)))]
            report.add(
                kind="op", what=what, shape=f"{shape} channels beside each other", dtype=str(dtype).removeprefix("torch."), threads=1,
                unit="ms", ours=best[0], peer=best[1], peer_name="transformers", target=TARGETS[what],
            )  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
