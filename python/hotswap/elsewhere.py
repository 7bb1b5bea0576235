"""Layers that packages have kernels for and kernelize() does not bind by itself: each has a row in the report, as in the C++ host's."""

from torch import nn

from hotswap import attention
from hotswap.bind import whole_layers_off
from hotswap.decode import LAYER, WholeLayers, plain_layers, trunk_of
from hotswap.match import is_rms_norm, matches
from hotswap.projections import ADD_NORM
from hotswap.replacement import class_of

_ON_THE_RESIDUAL = ("input_layernorm", "pre_feedforward_layernorm", "pre_ff_layernorm", "norm")


def _decoder_layers(model: nn.Module, names: dict) -> list:
    layers = plain_layers(model)
    if not layers:
        return []
    off = whole_layers_off(model)
    whys = {} if off else {layer: why for why, stock in WholeLayers(model).why.items() for layer in stock}
    return [
        (names[id(layer)], LAYER, off or whys.get(f"layers.{number}", "bound in the steps of hotswap.generate"))
        for number, layer in enumerate(layers)
    ]


def _norms(model: nn.Module, names: dict) -> list:
    """Those whose input is a sum with the residual."""
    trunk, layers = trunk_of(model)
    found = [part for name in ("norm", "norm_f", "final_layernorm") if is_norm(part := getattr(trunk, name, None))]
    for layer in layers:
        if any(hasattr(layer, name) for name in ("input_layernorm", "norm")):
            after = () if hasattr(layer, "pre_feedforward_layernorm") else ("post_attention_layernorm",)
            found += [part for name in (*_ON_THE_RESIDUAL, *after) if is_norm(part := getattr(layer, name, None))]
    return [(names[id(norm)], ADD_NORM, "in training on a GPU alone") for norm in found]


def is_norm(part) -> bool:
    return isinstance(part, nn.Module) and is_rms_norm(part)


def _routers(model: nn.Module) -> list:
    """Modules that hold the weight of a product: a mixture's router."""
    found = []
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if class_of(module).__name__.endswith("Router") and weight is not None and weight.dim() == 2 and class_of(module) is not nn.Linear:
            found.append((name, "Linear", "torch's own product"))
    return found


def _attentions(model: nn.Module) -> list:
    why = "attention is off: attn_implementation runs"
    return [
        (name, "attention", why) for name, module in model.named_modules() if attention.is_attention(module) and not attention.running(module)
    ]


def _losses(model: nn.Module) -> list:
    """The loss without logits, of families whose head has no such form."""
    found = {r.option for r in matches(model)}
    why = f"{class_of(model).__name__} has no form of it"
    return [("", "LinearCrossEntropy", why)] if found == {"cross_entropy"} else []


def rows(model: nn.Module, attends: set) -> list:
    """(name, layer, why) of each. attends: names of attentions that have a row already."""
    names = {id(module): name for name, module in model.named_modules()}
    attentions = [row for row in _attentions(model) if row[0] not in attends]
    return [*_decoder_layers(model, names), *_norms(model, names), *_routers(model), *attentions, *_losses(model)]
