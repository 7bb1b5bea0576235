"""What a model was bound with, and what follows for the attention and for whole decoder layers."""

from typing import Callable, NamedTuple, Optional

from torch import nn

from hotswap.core.devices import device_name, devices_of
from hotswap.core.kernel_ref import KernelRef
from hotswap.core.mapping import ATTENTION, DECODER_LAYER, STOCK, Choice, Mapping
from hotswap.core.sources import ORGANIZATION, Sources
from hotswap.core.switch import OFF, enabled


class Chosen(NamedTuple):
    """What a model was bound with, for the next kernelize() that does not say otherwise."""

    options: dict
    mapping: Mapping
    sources: Sources
    mode: str = "INFERENCE"  # of the mapping's kernels
    strict: bool = False
    rebind: Optional[Callable] = None  # what train() and eval() call with the model, where no mode was passed and the mapping has some


_PARTS_OF_LAYERS = ("rms_norm", "rope", "mlp")  # options


def whole_layers_off(model: nn.Module, chosen: Optional[Chosen] = None) -> str:
    """Why hotswap.generate runs the model's decoder layers by their parts, whatever the op serves; "": the op decides. chosen: instead of
    what the model was bound with."""
    if not enabled():
        return OFF
    chosen = chosen or model.__dict__.get("_hotswap_chosen")
    return layers_off_by(chosen, model) if chosen else ""


def layers_off_by(chosen: Chosen, model: nn.Module) -> str:
    """ValueError where the mapping names a kernel for them that does not exist."""
    if option := next((o for o in _PARTS_OF_LAYERS if not chosen.options[o]), ""):
        return f"{option} is off, a part of it"
    choice = chosen.mapping.choice((DECODER_LAYER,), device_name(devices_of(model)), "INFERENCE")
    if choice is None:
        return ""
    if choice.ref is None:
        return choice.why
    if choice.ref.stock:
        return STOCK
    known = chosen.sources.bundled(choice.ref, (DECODER_LAYER,)) is not None
    return "" if known else f"hotswap.generate runs only hotswap/decode, and the mapping has {choice.ref.text}"


def attention_choice(model: nn.Module, chosen: Chosen) -> Optional[Choice]:
    """What the mapping has for the attention; None: nothing."""
    if not chosen.mapping.names((ATTENTION,)):
        return None
    return chosen.mapping.choice((ATTENTION,), device_name(devices_of(model)), chosen.mode)


def serves_attention(ref: KernelRef, chosen: Chosen) -> bool:
    """Is that our package, by its own name or as a stand-in?"""
    of_ours = ref if ref.repo.startswith(f"{ORGANIZATION}/") else ref._replace(layer="")  # flash attention's layers have names of their own
    return chosen.sources.bundled(of_ours, (ATTENTION,)) is not None
