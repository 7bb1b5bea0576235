"""Where Liger's users import its names from: enable_for_trainer() puts modules there, which ask here."""

import importlib

_OF_TRANSFORMERS = ("modules", "liger_probability", "liger_channel_norm", "distillation", "grpo", "liger", "auto")
_OF_LOSSES = ("chunked_loss",)
# where Liger has each of its layers
_FILES = """auto_model cross_entropy functional fused_add_rms_norm fused_linear_cross_entropy geglu grpo_loss layer_norm llama4_rope
mlp monkey_patch qwen2vl_mrope relu_squared rms_norm rope swiglu tiled_mlp"""

# what is imported -> where its names are, the first that has it first
PLACES = {
    "liger_kernel.transformers": _OF_TRANSFORMERS,
    **{f"liger_kernel.transformers.{file}": _OF_TRANSFORMERS for file in _FILES.split()},
    "liger_kernel.chunked_loss": _OF_LOSSES,
    "liger_kernel.chunked_loss.functional": _OF_LOSSES,
}


def place_of(name: str, places=(*_OF_TRANSFORMERS, *_OF_LOSSES)):
    """The module of hotswap that has Liger's `name` to give; None where none has."""
    for place in places:
        module = importlib.import_module(f"hotswap.{place}")
        if name in module.__all__:
            return module
    return None


def names_of(imported: str):
    """The __getattr__ of the module `imported`."""

    def find(name):
        module = None if name.startswith("__") else place_of(name, PLACES[imported])
        if module is None:
            raise AttributeError(f"{imported}: hotswap has no {name}")
        return getattr(module, name)

    return find
