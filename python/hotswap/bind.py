"""kernelize, unkernelize and report: which forward each module of a model runs.

A bound module carries the forward of a package in its own dictionary, before its class's; weights and modules stay what
they are, so taking it out again is exact. Nothing is done to classes, nor to other models.
"""

import functools
import os
import threading
import types
import weakref
from dataclasses import dataclass, field
from typing import Optional

from torch import nn

from hotswap import attention, experts, match, projections
from hotswap.packages import owner, package, register_sharding
from hotswap.replacement import Replacement, class_of


class _MISSING:  # a class: copies of a model see the same one
    pass


_FORWARDS: "weakref.WeakSet" = weakref.WeakSet()  # every forward that was bound to some module
_BASELINE: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # model -> calls of each op when it was bound


_BINDING = threading.RLock()


def _one_at_a_time(function):
    """Threads that bind or ask what is bound wait for each other; calls of a model do not."""

    @functools.wraps(function)
    def waiting(*args, **kwargs):
        with _BINDING:
            return function(*args, **kwargs)

    return waiting


def check_options(options: dict) -> dict:
    """Every option with its value; TypeError for one that does not exist."""
    unknown = sorted(set(options) - set(match.OPTIONS))
    if unknown:
        raise TypeError(f"wanted options of {', '.join(match.OPTIONS)}; got {', '.join(unknown)}; leave it out")
    return {**match.OPTIONS, **options}


def _check_mode(mode) -> set:
    """The names in a kernels.Mode, or in "training", "inference", "training|torch_compile"."""
    if mode is None:
        return set()
    text = mode if isinstance(mode, str) else getattr(mode, "name", None) or str(mode)
    names = {part.strip().removeprefix("Mode.").upper() for part in text.split("|")}
    if not names <= {"INFERENCE", "TRAINING", "TORCH_COMPILE"} or not names & {"INFERENCE", "TRAINING"}:
        raise ValueError(
            f"wanted a mode of inference or training, with torch_compile or not; got {mode}; pass one of these, for example "
            '"training|torch_compile"'
        )
    return names


def _can(replacement: Replacement, mode: set) -> bool:
    made_here = replacement.layer_class is None
    has_backward = made_here or getattr(replacement.layer_class, "has_backward", False)
    can_compile = made_here or getattr(replacement.layer_class, "can_torch_compile", False)
    return (has_backward or "TRAINING" not in mode) and (can_compile or "TORCH_COMPILE" not in mode)


def _devices(module: nn.Module) -> set:
    return {p.device.type for p in module.parameters()}


def _serves(module: nn.Module, replacement: Replacement, of_model: set) -> bool:
    """Kernels for the CPU alone leave the layers of a GPU as they are. A layer without parameters is where its model is."""
    devices = _devices(module) or of_model
    return devices <= {"cpu", "meta"} or "-cpu-" not in package(replacement.package).variant


def _slot(module: nn.Module) -> str:
    # accelerate's hooks hold the forward that they call under this name
    return "_old_forward" if "_old_forward" in module.__dict__ else "forward"


def _put(module: nn.Module, name: str, value) -> None:
    module.__dict__.setdefault("_hotswap", {}).setdefault(name, module.__dict__.get(name, _MISSING))
    module.__dict__[name] = value


def _bind(module: nn.Module, replacement: Replacement) -> None:
    if replacement.option == "cross_entropy":
        _put(module, "_loss_function", replacement.forward)
        return
    if replacement.attribute:
        _put(module, replacement.attribute, replacement.forward)
        return
    if replacement.option == "fused_linear_cross_entropy":
        from hotswap.loss import causal_lm_loss, head_forward, head_of

        head = head_of(module)
        _FORWARDS.add(head_forward)
        _put(head, _slot(head), types.MethodType(head_forward, head))
        if getattr(replacement.forward, "defers", False):
            _put(head, "defers", True)
            _put(module, "_loss_function", causal_lm_loss)
    _FORWARDS.add(replacement.forward)
    _put(module, _slot(module), types.MethodType(replacement.forward, module))


def enabled() -> bool:
    """USE_HUB_KERNELS=0, OFF or NO switches every kernel off, here as in transformers: whatever is not a yes."""
    return os.environ.get("USE_HUB_KERNELS", "YES").upper() in ("1", "ON", "YES", "TRUE")


@_one_at_a_time
def kernelize(model: nn.Module, mode=None, strict: bool = False, **options) -> nn.Module:
    """Binds our kernels to every layer of `model` that computes what one of them computes; returns the model.

    mode: None for every mode, and then train() and eval() need nothing; or as kernels.Mode, to leave out layers that
    lack it. strict: RuntimeError, and nothing changed, where a layer that looks like one of ours stays stock.
    options: rms_norm, layer_norm, rope, mlp, activation, experts, cross_entropy, deformable_attention, mamba (all
    on), fused_linear_cross_entropy (off: with it a training forward gives a loss and no logits), and attention (off: it is the
    attn_implementation of the model). Bound anew each time: what was bound before is taken out.
    """
    options, mode = check_options(options), _check_mode(mode)
    chosen, ops = [], set()
    devices = _devices(model)
    for module in model.modules() if enabled() else ():
        found = match.matches(module)
        ops |= {(r.package, op) for r in found for op in r.ops}
        found = [r for r in found if options[r.option] and _can(r, mode) and _serves(module, r, devices)]
        chosen += [(module, found[-1])] if found else []  # the fused loss goes before the plain one
    # the activation of a gated MLP, or of experts, is part of their kernel
    inside = {id(child) for module, r in chosen if r.option == "mlp" for child in module.children()}
    whole = [getattr(module, "experts", module) for module, r in chosen if r.option == "experts"]
    inside |= {id(child) for part in whole for child in part.modules()}
    chosen = [(module, r) for module, r in chosen if r.option != "activation" or id(module) not in inside]
    if strict:
        taken = {id(module) for module, _ in chosen}
        missed = [
            f"{name} ({class_of(module).__name__})"
            for name, module in model.named_modules()
            if match.looks_like(module) and id(module) not in taken
        ]
        if missed:
            raise RuntimeError(
                f"strict: wanted a kernel for every layer; got none for {', '.join(missed)}; drop strict to leave them stock"
            )
    _take_out(model)
    for module, replacement in chosen:
        _bind(module, replacement)
    if options["attention"] and enabled():
        ops |= attention.bind(model)
    register_sharding()
    _BASELINE[model] = _counts(ops)
    return model


def _take_out(model: nn.Module) -> None:
    attention.take_out(model)
    for module in model.modules():
        for name, before in module.__dict__.pop("_hotswap", {}).items():
            if before is _MISSING:
                module.__dict__.pop(name, None)
            else:
                module.__dict__[name] = before
        if owner(_running(module)):  # bound by kernels' own kernelize
            del module.__dict__["forward"]
    _BASELINE.pop(model, None)


@_one_at_a_time
def unkernelize(model: nn.Module) -> nn.Module:
    """Takes every kernel of ours out again, also those that kernel_config() brought; returns the model."""
    _take_out(model)
    config = getattr(model, "kernel_config", None)
    if config is not None and type(config).__module__ == "hotswap.config":
        model.kernel_config, model._use_kernels = None, False
    return model


# ---- the report -----------------------------------------------------------------------------------------------------


@dataclass
class Row:
    name: str  # of the module
    layer: str
    package: Optional[str]  # None: stock; an id where kernels' own kernelize bound it
    version: Optional[int] = None
    variant: Optional[str] = None
    ops: tuple = ()
    why: str = ""  # it is stock; of a bound one, what it leaves to others


@dataclass
class Report:
    rows: list
    calls: dict = field(default_factory=dict)  # "norm.rms_norm" -> calls in this process since the model was bound

    def __str__(self):
        lines = []
        groups: dict = {}
        for row in self.rows:
            groups.setdefault((row.layer, row.package, row.version, row.variant, row.why), []).append(row.name)
        for (layer, name, version, variant, why), names in groups.items():
            note = f"; {why}" if why else ""
            where = f"{name} v{version} ({variant}){note}" if version else name or f"stock: {why}"
            first = names[0] or "the model"
            lines.append(f"{layer:20} x{len(names):<4} {where:52} {first}{', ...' if len(names) > 1 else ''}")
        lines += [f"{op:36} {count} calls" for op, count in sorted(self.calls.items()) if count]
        return "\n".join(lines)


def _counts(ops) -> dict:
    return {f"{name}.{op}": package(name).calls(op) for name, op in ops}


def _running(module: nn.Module):
    return getattr(module.__dict__.get(_slot(module)), "__func__", None)


def runs_ours(module: nn.Module) -> bool:
    """Is the forward in the module's own dictionary one of ours, or one that kernels' own kernelize bound?"""
    running = getattr(module.__dict__.get("forward"), "__func__", None)
    return running in _FORWARDS or owner(running) is not None


def _bound(module: nn.Module, replacement: Replacement) -> bool:
    if replacement.option == "cross_entropy":
        return module.__dict__.get("_loss_function") is replacement.forward
    if replacement.attribute:
        return module.__dict__.get(replacement.attribute) is replacement.forward
    return _running(module) is replacement.forward


@_one_at_a_time
def report(model: nn.Module) -> Report:
    """What every layer runs that is bound, could be, or looks as if: read from the modules as they are now."""
    rows, ops, devices = [], set(), _devices(model)
    for name, module in model.named_modules():
        found = [r for r in match.matches(module) if projections.is_here(module, r)]
        bound = next((r for r in reversed(found) if _bound(module, r)), None)  # as kernelize chooses
        if bound is not None:
            made = package(bound.package)
            why = projections.note(module, bound)
            rows.append(Row(name, bound.layer, made.name, made.version, made.variant, bound.ops, why))
            ops |= {(bound.package, op) for op in bound.ops}
        elif package_id := owner(_running(module)):  # by kernels' own kernelize, from a mapping
            made = class_of(module)
            rows.append(Row(name, getattr(made, "kernel_layer_name", made.__name__), package_id))
        elif found and found[0].option != "activation":
            why = "not bound" if _serves(module, found[0], devices) else f"the package {found[0].package} has kernels for the CPU alone"
            rows.append(Row(name, found[0].layer, None, why=why))
        elif not found and (layer := match.looks_like(module)):
            why = experts.why_not(module) or f"{class_of(module).__name__} computes something else"
            rows.append(Row(name, layer, None, why=why))
        rows += _func_rows(name, module)
        if made := attention.running(module):
            why = "dropout in training by torch's" if attention.drops_out(module) else ""
            rows.append(Row(name, "attention", made.name, made.version, made.variant, attention.OPS, why))
            ops |= {(made.name, op) for op in attention.OPS}
    counts = _counts(ops)
    before = _BASELINE.get(model, {})
    return Report(rows, {op: count - before.get(op, 0) for op, count in counts.items()})


def _func_rows(name: str, module: nn.Module) -> list:
    """Functions that kernels' own kernelize bound, for every model of the process."""
    rows = []
    for function_name, function in getattr(module, "_kernel_funcs", {}).items():
        package_id = owner(getattr(function.__dict__.get("forward"), "__func__", None))
        if package_id:
            rows.append(Row(f"{name}.{function_name}", type(function).kernel_layer_name, package_id))
    return rows
