"""The functions of the packages causal_conv1d and mamba_ssm by our kernels, on the CPU too, for models of your own:

    from hotswap.mamba import causal_conv1d_fn, selective_scan_fn

Arguments are theirs, by name and order. What they can do with one layout in memory alone is done with every one.
"""

from hotswap.core.packages import load as _load

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "mamba_chunk_scan_combined",
    "mamba_inner_fn",
    "mamba_split_conv1d_scan_combined",
    "rmsnorm_fn",
    "selective_scan_fn",
    "selective_state_update",
]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module 'hotswap.mamba' has no attribute {name!r}")
    value = globals()[name] = getattr(_load("mamba"), name)
    return value
