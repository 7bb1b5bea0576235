"""Where Liger's users import its names from: enable_for_trainer() puts modules there, which ask here."""

import importlib

_OF_TRANSFORMERS = ("modules", "probability", "channel_norm", "distillation", "grpo", "families", "auto", "lacks")
_OF_LOSSES = ("chunked_loss",)
_OF_OPS = ("ops", "grpo")
# where Liger has each of its layers, and of its losses over a linear head
_FILES = """auto_model cross_entropy dyt experimental experimental.embedding functional fused_add_rms_norm fused_ce_tvd
fused_linear_cross_entropy fused_linear_jsd fused_linear_kl_div fused_neighborhood_attention geglu group_norm grpo_loss jsd kl_div
layer_norm llama4_rope mhc mlp model model.loss_utils modulated_rms_norm moe monkey_patch multi_token_attention poly_norm
qwen2vl_mrope relu_squared rms_norm rope softmax sparsemax swiglu tiled_mlp tvd vocab_parallel_cross_entropy"""
_LOSS_FILES = "cosine_similarity_loss cpo_loss dpo_loss functional grpo_loss jsd_loss kto_loss orpo_loss simpo_loss"

_OP_FILES = """attn_res cross_entropy dyt experimental experimental.embedding fused_add_rms_norm fused_ce_tvd
fused_linear_cross_entropy fused_linear_jsd fused_linear_kl_div fused_linear_scaled_cross_entropy fused_moe fused_neighborhood_attention
geglu group_norm grpo_loss jsd kl_div layer_norm llama4_rope mhc mlp modulated_rms_norm multi_token_attention poly_norm qwen2vl_mrope
relu_squared rms_norm rope softmax sparsemax swiglu tiled_mlp tvd vocab_parallel_cross_entropy"""

# what is imported -> where its names are, the first that has it first
PLACES = {
    "liger_kernel.functional": ("functional",),
    "liger_kernel.ops": _OF_OPS,
    **{f"liger_kernel.ops.{file}": _OF_OPS for file in _OP_FILES.split()},
    "liger_kernel.transformers": _OF_TRANSFORMERS,
    **{f"liger_kernel.transformers.{file}": _OF_TRANSFORMERS for file in _FILES.split()},
    "liger_kernel.chunked_loss": _OF_LOSSES,
    **{f"liger_kernel.chunked_loss.{file}": _OF_LOSSES for file in _LOSS_FILES.split()},
}


def place_of(name: str, places=(*_OF_TRANSFORMERS, *_OF_OPS, *_OF_LOSSES)):
    """The module of hotswap.liger that has Liger's `name` to give; None where none has."""
    for place in places:
        module = importlib.import_module(f"hotswap.liger.{place}")
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


def all_of(imported: str):
    """The __dir__ of the module `imported`."""
    return lambda: sorted({n for place in PLACES[imported] for n in importlib.import_module(f"hotswap.liger.{place}").__all__})
