"""Layers that packages have kernels for and kernelize() does not bind by itself: each has a row in the report, as in the C++ host's."""

from typing import Optional

from torch import nn

from hotswap.core.chosen import Chosen, attention_choice, whole_layers_off
from hotswap.core.devices import device_name, devices_of
from hotswap.core.mapping import ATTENTION, DECODER_LAYER, STOCK
from hotswap.core.replacement import class_of
from hotswap.core.switch import OFF, enabled
from hotswap.generation.checks import why_not_generated
from hotswap.generation.decode import WholeLayers, plain_layers, trunk_of
from hotswap.matchers import attention
from hotswap.matchers.norm import is_rms_norm
from hotswap.matchers.projections import ADD_NORM
from hotswap.matchers.registered import matches

IN_GENERATE = "bound in the steps of hotswap.generate"
ON_A_GPU = "in training on a GPU alone"
_ON_THE_RESIDUAL = ("input_layernorm", "pre_feedforward_layernorm", "pre_ff_layernorm", "norm")


def _decoder_layers(model: nn.Module, names: dict, chosen: Optional[Chosen]) -> list:
    layers = plain_layers(model)
    if not layers:
        return []
    off = whole_layers_off(model, chosen) or why_not_generated(model)
    whys = {} if off else {layer: why for why, stock in WholeLayers(model).why.items() for layer in stock}
    return [
        (names[id(layer)], DECODER_LAYER, off or whys.get(f"layers.{number}", IN_GENERATE))
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
    return [(names[id(norm)], ADD_NORM, ON_A_GPU) for norm in found]


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


_OFF = "attention is off: attn_implementation runs"


def _attention_off(model: nn.Module) -> str:
    """Why none of the model's attentions is ours."""
    chosen: Optional[Chosen] = model.__dict__.get("_hotswap_chosen")
    if chosen is None:
        return _OFF
    choice = attention_choice(model, chosen)
    if choice is not None and (choice.why or choice.ref.stock):
        return choice.why or STOCK
    return chosen.mapping.elsewhere((ATTENTION,), device_name(devices_of(model))) or _OFF


def _attentions(model: nn.Module) -> list:
    why = _attention_off(model)
    return [
        (name, "attention", why if why != _OFF or attention.is_attention(module) else f"attention is off, and {attention.NO_LOOK_UP}")
        for name, module in attention.modules(model)
        if not attention.running(module)
    ]


def _losses(model: nn.Module) -> list:
    """The loss without logits, of families whose head has no such form."""
    found = {r.option for r in matches(model)}
    why = f"{class_of(model).__name__} has no form of it"
    return [("", "LinearCrossEntropy", why)] if found == {"cross_entropy"} else []


def rows(model: nn.Module, attends: set, layers: Optional[set] = None, chosen: Optional[Chosen] = None) -> list:
    """(name, layer, why) of each. attends: names of attentions that have a row already. layers: only of these.
    chosen: instead of what the model was bound with."""
    names = {id(module): name for name, module in model.named_modules()}
    of = {
        DECODER_LAYER: lambda: _decoder_layers(model, names, chosen),
        ADD_NORM: lambda: _norms(model, names),
        "Linear": lambda: _routers(model),
        "attention": lambda: [row for row in _attentions(model) if row[0] not in attends],
        "LinearCrossEntropy": lambda: _losses(model),
    }
    found = [row for layer, make in of.items() if layers is None or layer in layers for row in make()]
    return found if enabled() else [(name, layer, OFF) for name, layer, _ in found]
