"""The attention of a model by our package: attn_implementation under a name of our own, which transformers asks for at each
forward. Taking it out gives each config of the model the name that it had."""

import sys
from typing import Optional

from torch import nn

from hotswap.packages import Package, package
from hotswap.replacement import inside

NAME = "hotswap"
OPS = (
    "attention",
    "attention_fwd",
    "attention_bwd",
    "attention_varlen",
    "attention_varlen_fwd",
    "attention_varlen_bwd",
)


def _forward(*args, **kwargs):
    """The first call brings the package, and its functions in the place of these two."""
    made = package("attention").module
    made.register(NAME)
    return made.interface.attention_forward(*args, **kwargs)


def _mask(*args, **kwargs):
    made = package("attention").module
    made.register(NAME)
    return made.interface._mask(*args, **kwargs)


def register() -> None:
    """Makes NAME an attn_implementation, without loading the package."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, _mask)


def _configs(model: nn.Module) -> list:
    """Those that say which attention runs, of the parts of a model that ask."""
    found = {}
    for module in model.modules():
        asks = getattr(module, "_can_set_attn_implementation", None)
        if asks is not None and asks():
            found[id(module.config)] = module.config
    return list(found.values())


def bind(model: nn.Module) -> set:
    """The ops that may run: {(package, op)}."""
    configs = _configs(model)
    if not configs:
        return set()
    made = package("attention")
    made.module.register(NAME)
    for config in configs:
        config.__dict__.setdefault("_hotswap_attention_before", config._attn_implementation)
        config._attn_implementation_internal = NAME
    return {(made.name, op) for op in OPS}


def bind_named(model: nn.Module, name: str, allow_all_kernels: bool) -> None:
    """A kernel of the Hub by its name, as transformers loads it."""
    for config in _configs(model):
        config.__dict__.setdefault("_hotswap_attention_before", config._attn_implementation)
        config.__dict__["_hotswap_attention_name"] = name
    model.set_attn_implementation(name, allow_all_kernels=allow_all_kernels)


def take_out(model: nn.Module) -> None:
    if "transformers" not in sys.modules:
        return
    for config in _configs(model):
        before = config.__dict__.pop("_hotswap_attention_before", None)
        name = config.__dict__.pop("_hotswap_attention_name", NAME)
        if before is not None and config._attn_implementation == name:
            config._attn_implementation_internal = before


def running(module: nn.Module) -> Optional[Package]:
    """Our package, where it is this module's attention."""
    forward = getattr(inside(type(module).forward), "__code__", None)
    if "ALL_ATTENTION_FUNCTIONS" not in getattr(forward, "co_names", ()):
        return None
    config = getattr(module, "config", None)
    return package("attention") if getattr(config, "_attn_implementation", None) == NAME else None


def drops_out(module: nn.Module) -> bool:
    rates = (getattr(module, name, 0.0) for name in ("attention_dropout", "dropout_p"))
    return any(isinstance(rate, float) and rate > 0 for rate in rates)
