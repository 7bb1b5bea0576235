"""generate() with a loop of ours, and whole decoder layers in its steps. The loop itself is loaded by its first use."""

__all__ = ["captured_generate", "generate"]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module 'hotswap.generation' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("hotswap.generation.loop"), name)
