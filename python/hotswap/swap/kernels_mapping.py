"""What the package kernels must be told so that a model keeps what hotswap bound: transformers has it bind every layer whose class
carries a name for it again, at each train() and eval() of a model with use_kernels=True.
"""

import functools
import inspect
from typing import Optional

from torch import nn

from hotswap.core.replacement import class_of
from hotswap.swap import binding

DEVICES = ("cpu", "cuda", "rocm", "mps", "xpu", "npu")


class Layer:
    """An entry of such a mapping: a layer class that is there already."""

    def __init__(self, layer_class: type, name: str):
        self.layer_class, self.layer_name = layer_class, name

    def load(self):
        return self.layer_class

    def __eq__(self, other):
        return isinstance(other, Layer) and self.layer_class is other.layer_class

    def __hash__(self):
        return hash(self.layer_class)

    def __str__(self):
        return f"`{self.layer_class.__module__}` (layer `{self.layer_name}`)"


@functools.lru_cache(maxsize=None)
def _own(module_class: type) -> type:
    """A layer class whose forward is the one that each module's class has, bound or not."""

    def forward(self, *args, **kwargs):
        return type(self).forward(self, *args, **kwargs)

    forward.hotswap_forward, forward.__signature__ = forward, inspect.signature(module_class.forward)
    return type("Own", (nn.Module,), {"forward": forward, "can_torch_compile": True, "has_backward": True})


def _layer_for(found: dict, module_class: type, name: str) -> Optional[Layer]:
    """found: module -> Replacement or None."""
    return Layer(_own(module_class), name) if any(found.values()) else None


def mapping_for(decisions: list) -> dict:
    """{name for kernels: {device: Layer}} of every layer that has such a name and is bound."""
    by_name: dict = {}
    for d in decisions:
        name = getattr(type(d.site.module), "kernel_layer_name", None)
        if name is not None:
            found = by_name.setdefault(name, {})
            found[d.site.module] = d.replacement or found.get(d.site.module)
    made = {name: _layer_for(found, class_of(next(iter(found))), name) for name, found in by_name.items()}
    return {name: {device: layer for device in DEVICES} for name, layer in made.items() if layer is not None}


@functools.lru_cache(maxsize=None)
def _kept_class() -> type:
    from transformers import KernelConfig

    class Kept(KernelConfig):
        """A model's own KernelConfig, and in it what hotswap bound."""

        def sanitize_kernel_mapping(self, model):
            pass

        def create_compatible_mapping(self, model, compile=False):
            pass

    return Kept


def untie(model: nn.Module) -> None:
    """Before anything is bound. kernels ties the forward of each layer that has a name to its object, a stock one too, so that copies of
    the model would run this one's weights: a class of ours keeps the forward in the class."""
    if hasattr(getattr(model, "kernel_config", None), "serve") or getattr(model, "_use_kernels", False):
        for module in model.modules():
            if hasattr(type(module), "kernel_layer_name"):
                binding.give_class(module)


def keep(model: nn.Module, decisions: list) -> None:
    """Nothing, where transformers binds nothing again."""
    config = getattr(model, "kernel_config", None)
    if hasattr(config, "serve"):  # ours
        config.serve(model, mapping_for(decisions))
        return
    if not getattr(model, "_use_kernels", False):
        return
    own = getattr(config, "hotswap_before", config) if type(config).__name__ == "Kept" else config
    local = bool(own is not None and own.use_local_kernel)
    inherits = own is None or getattr(own, "inherit_mapping", True)
    made = _kept_class()({**(own.kernel_mapping if own else {}), **mapping_for(decisions)}, local, inherits)
    made.hotswap_before = own
    model.kernel_config = made


def forget(model: nn.Module) -> None:
    """unkernelize()'s part."""
    config = getattr(model, "kernel_config", None)
    if hasattr(config, "serve"):
        model.kernel_config, model._use_kernels = None, False
    elif hasattr(config, "hotswap_before"):
        model.kernel_config = config.hotswap_before
