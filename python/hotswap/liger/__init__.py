"""Liger's API on our kernels: names for whole models (families.py, which is loaded by its first use), layers, losses, functions."""

import importlib

_OF_MODELS = frozenset(
    """FAMILIES MODEL_TYPE_TO_APPLY_LIGER_FN OURS enable_for_trainer function_of is_transformers_available restore_classes""".split()
)
_PREFIXES = ("apply_liger_kernel_to_", "_apply_liger_kernel")


def __getattr__(name):
    if name not in _OF_MODELS and not name.startswith(_PREFIXES):
        raise AttributeError(f"module 'hotswap.liger' has no attribute {name!r}")
    return getattr(importlib.import_module("hotswap.liger.families"), name)
