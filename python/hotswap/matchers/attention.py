"""The attention of a model by our package: attn_implementation under a name of our own, which transformers asks for at each
forward. Taking it out gives each config of the model the name that it had.

A config is bound where the classes that share it say that flash attention serves them, and where each attention's own eager
formula is the one that the package computes; else it keeps its own, and the report says why.
"""

import inspect
import sys
from typing import Optional

import torch
from torch import nn

from hotswap.core.agree import agreement, first, numbers, settings, shell_of, stock_forward
from hotswap.core.packages import Package, load, package
from hotswap.core.plain import is_foreign
from hotswap.core.replacement import Replacement, class_of, inside, names_in
from hotswap.core.switch import enabled

NAME = "hotswap"
OPS = (
    "attention",
    "attention_fwd",
    "attention_bwd",
    "attention_varlen",
    "attention_varlen_fwd",
    "attention_varlen_bwd",
)
NO_LOOK_UP = "its class does not look up an attn_implementation"
_BEFORE = "_hotswap_attention_before"  # on a part: (attn_implementation before, ours)
REQUESTED = "_hotswap_attention"  # on a model that was kernelized with attention=True


def _forward(module, *args, **kwargs):
    """The first call brings the package, and its functions instead of these two. Where kernels are switched off: the module's own
    formula."""
    if not enabled():
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        own = inside(stock_forward(module)).__globals__.get("eager_attention_forward", sdpa_attention_forward)
        return own(module, *args, **kwargs)
    made = package("attention").module
    made.register(NAME)
    return made.interface.attention_forward(module, *args, **kwargs)


def _mask(*args, **kwargs):
    if not enabled():
        from transformers.masking_utils import eager_mask

        return eager_mask(*args, **kwargs)
    made = package("attention").module
    made.register(NAME)
    return made.interface._mask(*args, **kwargs)


def register() -> None:
    """Makes NAME an attn_implementation, without loading the package."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, _mask)


def _parts(model: nn.Module) -> list:
    """The parts of a model that look up an attention function by their config."""
    found = []
    for module in model.modules():
        asks = getattr(module, "_can_set_attn_implementation", None)
        if asks is not None and asks():
            found.append(module)
    return found


def _configs(model: nn.Module) -> list:
    """Those that say which attention runs, each once."""
    return list({id(part.config): part.config for part in _parts(model)}.values())


def modules(model: nn.Module) -> list:
    """(name, module) of each attention: those that look up an attention function, and the innermost ones of others by their names."""
    found = [(name, module) for name, module in model.named_modules() if is_attention(module) or _looks_like(module)]
    around = {name[:i] for name, _ in found for i in range(len(name)) if name[i] == "."} | ({""} if len(found) > 1 else set())
    return [(name, module) for name, module in found if is_attention(module) or name not in around]


def _looks_like(module: nn.Module) -> bool:
    name = class_of(module).__name__
    return "Attention" in name and "Deformable" not in name and next(module.parameters(), None) is not None


def is_attention(module: nn.Module) -> bool:
    code = getattr(inside(stock_forward(module)), "__code__", None)
    return "ALL_ATTENTION_FUNCTIONS" in getattr(code, "co_names", ()) and hasattr(module, "config")


def function_of(module: nn.Module):
    """The function that computes the attention of this module, as it is now; None: its class looks none up."""
    scope = getattr(inside(stock_forward(module)), "__globals__", {})
    interface, name = scope.get("ALL_ATTENTION_FUNCTIONS"), getattr(getattr(module, "config", None), "_attn_implementation", None)
    eager = scope.get("eager_attention_forward")
    return eager if interface is None else interface.get(name, eager)


def why_foreign(module: nn.Module) -> str:
    """A foreign attention; "": one of transformers, of a package of ours or of the file of the module's class."""
    function = function_of(module)
    own = function is not None and is_foreign(function, module)
    return f"its attention is {getattr(function, '__qualname__', type(function).__qualname__)}" if own else ""


# ---- what the package may serve -------------------------------------------------------------------------------------


def _has_chunks(part: nn.Module) -> bool:
    """Llama 4 says no to flash attention, which lacks its chunks. The package has them."""
    return "create_chunked_causal_mask" in names_in(getattr(inside(stock_forward(part)), "__code__", None))


def _same_formula(module: nn.Module, forward) -> bool:
    """Does the module's eager formula compute what the package does? Yes, where it has none by that name."""
    eager = forward.__globals__.get("eager_attention_forward")
    if not inspect.isfunction(eager):
        return True
    names = {name for c in forward.__code__.co_consts if isinstance(c, tuple) for name in c}
    grouped = "repeat_kv" in eager.__code__.co_names
    capped = "softcap" in inspect.signature(eager).parameters

    def candidates():
        return [Replacement("attention", "attention", "attention", OPS, load("attention").interface.attention_forward)]

    def agree(candidate):
        q, k, v = numbers(2, 4, 5, 8), numbers(2, 2 if grouped else 4, 5, 8) + 0.5, numbers(2, 2 if grouped else 4, 5, 8)
        parts = dict(num_key_value_groups=2) if grouped else {}
        more = {}
        if isinstance(getattr(module, "sinks", None), torch.Tensor):
            parts["sinks"] = nn.Parameter(numbers(4))
            more = dict(s_aux=parts["sinks"]) if "s_aux" in names else {}
        shell = shell_of(module, **parts).eval()
        mask = torch.zeros(2, 1, 5, 5).masked_fill(numbers(2, 1, 5, 5) > 0.5, torch.finfo(torch.float32).min)
        made = [(name, f) for name, f in (("stock", eager), ("ours", candidate.forward))]
        calls = {name: (lambda cap, f=f: f(shell, q, k, v, mask, scaling=0.3, dropout=0.0, **cap, **more)[0]) for name, f in made}
        return agreement(calls["stock"], calls["ours"], [(({},), 1e-5)] + [(({"softcap": 2.0},), 1e-5)] * capped)

    return bool(first(("attention", class_of(module), eager), candidates, agree))


def _why_not_module(module: nn.Module) -> str:
    forward = inside(stock_forward(module))
    name = class_of(module).__name__
    if unknown := load("attention").interface.unknown_keywords(forward):
        return f"{name} gives its attention {', '.join(sorted(unknown))}, which the package does not take"
    return "" if _same_formula(module, forward) else f"{name} computes something else"


def _looks_nothing_up(part: nn.Module) -> bool:
    """Has it attentions, and none that looks its implementation up? A mask for ours would be theirs then."""
    found = modules(part)
    return bool(found) and not any(is_attention(module) for _, module in found)


def why_not(model: nn.Module) -> dict:
    """id of a config -> why the package does not serve the attention of the parts that share it; absent: it does."""
    reasons, chunked = {}, set()
    for part in _parts(model):
        if _has_chunks(part):
            chunked.add(id(part.config))
        elif not getattr(part, "_supports_flash_attn", False):
            reasons.setdefault(id(part.config), f"{class_of(part).__name__} says that flash attention does not serve it")
        elif _looks_nothing_up(part):
            reasons.setdefault(id(part.config), NO_LOOK_UP)
    reasons = {config: reason for config, reason in reasons.items() if config not in chunked}
    for module in model.modules():
        if is_attention(module) and id(module.config) not in reasons and (reason := _why_not_module(module)):
            reasons[id(module.config)] = reason
    return reasons


# ---- in and out -----------------------------------------------------------------------------------------------------


def _remember(model: nn.Module, config, name: str) -> None:
    """On the parts, not on the config, whose attributes are saved with the model."""
    for part in _parts(model):
        if part.config is config:
            part.__dict__[_BEFORE] = (config._attn_implementation, name)


def bind(model: nn.Module) -> set:
    """The ops that may run: {(package, op)}."""
    model.__dict__[REQUESTED] = True
    configs = _configs(model)
    if not configs:
        return set()
    made, reasons = package("attention"), why_not(model)
    made.module.register(NAME)
    for config in configs:
        if id(config) not in reasons:
            _remember(model, config, NAME)
            config._attn_implementation_internal = NAME
    return {(made.name, op) for op in OPS}


def bind_named(model: nn.Module, name: str, allow_all_kernels: bool) -> None:
    """A kernel of the Hub by its name, as transformers loads it."""
    for config in _configs(model):
        _remember(model, config, name)
    model.set_attn_implementation(name, allow_all_kernels=allow_all_kernels)


def take_out(model: nn.Module) -> None:
    model.__dict__.pop(REQUESTED, None)
    if "transformers" not in sys.modules:
        return
    for part in _parts(model):
        before, name = part.__dict__.pop(_BEFORE, (None, NAME))
        if before is not None and part.config._attn_implementation == name:
            part.config._attn_implementation_internal = before


def running(module: nn.Module) -> Optional[Package]:
    """Our package, where it is this module's attention."""
    is_ours = is_attention(module) and getattr(module.config, "_attn_implementation", None) == NAME
    return package("attention") if is_ours else None


def refused(model: nn.Module) -> list:
    """(name, module, why) of each attention that attention=True leaves stock."""
    served, reasons = {id(c) for c in _configs(model)}, why_not(model)
    made = []
    for name, module in modules(model):
        config = id(module.config) if is_attention(module) else None
        why = reasons.get(config, "" if config in served else NO_LOOK_UP)
        made += [(name, module, why)] if why else []
    return made


def stock_rows(model: nn.Module) -> list:
    """(name, why) of each attention that runs something else though attention=True was asked for."""
    if REQUESTED not in model.__dict__:
        return []
    reasons = {name: why for name, _, why in refused(model)}
    found = [name for name, module in modules(model) if running(module) is None]
    return [(name, reasons.get(name, "not bound: another attn_implementation was set since")) for name in found]


def note(module: nn.Module) -> str:
    """What a bound attention leaves to torch's own."""
    rates = (getattr(module, name, 0.0) for name in ("attention_dropout", "dropout_p"))
    notes = ["dropout in training"] if any(isinstance(rate, float) and rate > 0 for rate in rates) else []
    made = load("attention").interface
    types = {(p.device.type, p.dtype) for p in module.parameters() if p.is_floating_point()}
    apart = {f"{dtype} on {device}".removeprefix("torch.") for device, dtype in types if not made.has_kernels(device, dtype)}
    notes += [f"{name} outside of autocast" for name in sorted(apart)]
    return f"{' and '.join(notes)} by torch's" if notes else ""
