"""What bench/gpu_plot.py draws of this package's rows: rates of what operations bind."""

import re


def operations(what: str, shape: str) -> float | None:
    """6 S H I forward, three times that with backward; None of a decode step, which bytes bind."""
    found = re.search(r"(\d+)x(\d+)x(\d+) (\d+) of \d+$", shape)
    if what == "moe_experts_decode" or not found:
        return None
    tokens, hidden, inner, top_k = map(int, found.groups())
    return 6 * tokens * top_k * hidden * inner * (3 if what.endswith("fwd_bwd") else 1)
