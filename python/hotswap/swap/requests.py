"""What kernelize() was requested by name, by an entry of the mapping or an option that is off by default, and the model does not run: a
row of the report for each, which strict takes for an error."""

from typing import NamedTuple

from torch import nn

from hotswap.core.chosen import attention_choice, serves_attention
from hotswap.core.devices import device_name, devices_of
from hotswap.core.mapping import ATTENTION, DECODER_LAYER
from hotswap.core.replacement import class_of
from hotswap.generation import decode
from hotswap.matchers import attention, projections
from hotswap.matchers.registered import OPTIONS
from hotswap.swap import elsewhere

# Options that are off by default, and the layer that each requests.
BY_OPTION = {name: layer for name, layer in {
    ATTENTION: ATTENTION, "fused_linear_cross_entropy": "LinearCrossEntropy", "linear": "Linear",
}.items() if not OPTIONS[name]}  # fmt: skip
_FROM_ELSEWHERE = (DECODER_LAYER, projections.ADD_NORM, "Linear", ATTENTION)


class Unmet(NamedTuple):
    name: str  # of the module
    layer: str
    why: str


def layers(chosen, model: nn.Module) -> set:
    """Of layers that kernelize() does not bind by default, those that the mapping names a kernel for, or an option requests."""
    device, requested = device_name(devices_of(model)), set()
    for layer in (*_FROM_ELSEWHERE, "LinearCrossEntropy"):
        choice = chosen.mapping.choice((layer,), device, chosen.mode) if chosen.mapping.names((layer,)) else None
        if choice is not None and not choice.part and not (choice.ref is not None and choice.ref.stock):
            requested.add(layer)
        elif choice is None and any(chosen.options[option] for option, of in BY_OPTION.items() if of == layer):
            requested.add(layer)
    return requested


def _none_of(model: nn.Module, layer: str) -> str:
    name = class_of(model).__name__
    if layer == "LinearCrossEntropy":
        return f"{name} has no form of it"
    return f"{name} has none"


def _attentions(model: nn.Module, chosen) -> list:
    choice = attention_choice(model, chosen)
    if choice is not None and choice.why:  # for other devices or modes
        return [Unmet(name, ATTENTION, choice.why) for name, _ in attention.modules(model)]
    ours = choice is None or serves_attention(choice.ref, chosen)
    refused = [Unmet(name, ATTENTION, why) for name, _, why in attention.refused(model)]
    return [row for row in refused if ours or row.why == attention.NO_LOOK_UP]


def unmet(model: nn.Module, chosen, found: list) -> list:
    """found: the sites of the model. Of each layer that was requested: the modules that stay without it; the model itself where
    none of its modules has one."""
    requested = layers(chosen, model)
    if not requested:
        return []
    adds = any(r.layer == projections.ADD_NORM and projections.is_here(site.module, r) for site in found if (r := site.replacement))
    met = {ATTENTION, *((projections.ADD_NORM,) if adds else ())}  # or looked at below
    rows = [Unmet(*row) for row in elsewhere.rows(model, set(), requested - met, chosen)]
    made = [row for row in rows if row.why != elsewhere.IN_GENERATE]
    if ATTENTION in requested:
        made += _attentions(model, chosen)
    there = {layer for site in found if site.replacement is not None for layer in site.layers} | {row.layer for row in made}
    there |= {ATTENTION} if attention.modules(model) else set()
    there |= {DECODER_LAYER} if decode.plain_layers(model) else set()
    return made + [Unmet("", layer, _none_of(model, layer)) for layer in sorted(requested - there)]
