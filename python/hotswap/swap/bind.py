"""kernelize and unkernelize: which forward each module of a model runs. plan.py decides, this module binds.

A bound module has a class of its own, whose forward is that of a package (binding.py); weights and modules stay what they are, so
taking it out again is exact. Nothing is done to the classes of models, nor to other models.
"""

import functools
import threading
import weakref
from typing import Optional

from torch import nn

from hotswap.core.arguments import FLAG, MODEL, check, checked
from hotswap.core.chosen import Chosen, attention_choice, layers_off_by, serves_attention
from hotswap.core.kernel_ref import parse
from hotswap.core.mapping import ATTENTION, Mapping, mapping_of, mode_name
from hotswap.core.packages import package, register_sharding
from hotswap.core.replacement import class_of
from hotswap.core.sources import Sources, check_attention_layer, concrete
from hotswap.core.switch import enabled
from hotswap.matchers import attention
from hotswap.matchers.registered import AROUND, OPTIONS
from hotswap.swap import binding, kernels_mapping, requests
from hotswap.swap.plan import Decision, Planner, mode_of, plan


_BASELINE: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # model -> calls of each op when it was bound


_BINDING = threading.RLock()


def one_at_a_time(function):
    """Threads that bind or ask what is bound wait for each other; calls of a model do not."""

    @functools.wraps(function)
    def waiting(*args, **kwargs):
        with _BINDING:
            return function(*args, **kwargs)

    return waiting


def check_options(options: dict, before: Optional[dict] = None) -> dict:
    """Every option with its value: what is given; else on where it was on `before`, but for attention; else the default. TypeError
    for one that does not exist or is neither True nor False (attention may be the name of a kernel)."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(f"expected options of {', '.join(OPTIONS)}; got {', '.join(unknown)}; leave it out")
    for name, value in options.items():
        if name == ATTENTION and isinstance(value, str):
            parse(value)  # for its error
        else:
            check("kernelize", name, value, FLAG)
    kept = {name: value for name, value in (before or {}).items() if value and name != ATTENTION}
    return {**OPTIONS, **kept, **options}


def check_mode(mode) -> set:
    """The names in a kernels.Mode, or in "training", "inference", "training|torch_compile"."""
    if mode is None:
        return set()
    try:
        names = set(mode_name(mode).split("|"))
    except ValueError:
        names = set()
    if "FALLBACK" in names or not names & {"INFERENCE", "TRAINING"}:
        raise ValueError(
            f"expected a mode of inference or training, with torch_compile or not; got {mode}; pass one of these, for example "
            '"training|torch_compile"'
        )
    return names


def check_attention_once(options: dict, mapping: Mapping) -> None:
    """ValueError where the option and the mapping choose differently. options: those of the call."""
    if ATTENTION not in options or not mapping.names((ATTENTION,)):
        return
    chosen, refs = options[ATTENTION], [ref for by_mode in mapping.table[ATTENTION].values() for ref in by_mode.values()]
    if isinstance(chosen, str) or chosen is all(ref.stock for ref in refs):
        in_mapping = ", ".join(dict.fromkeys(repr(ref.text) for ref in refs))
        raise ValueError(f"expected one choice of attention; got attention={chosen!r} and {in_mapping} in the kernel mapping; leave one out")


@checked(model=MODEL, strict=FLAG, allow_all_kernels=FLAG)
@one_at_a_time
def kernelize(
    model: nn.Module, mode=None, strict: bool = False, kernel_config=None, allow_all_kernels: bool = False, **options
) -> nn.Module:
    """Binds our kernels to every layer of `model` that computes what one of them computes; returns the model.

    mode: None for every mode, and then train() and eval() need nothing (where the mapping has kernels by mode, they bind again);
    or as kernels.Mode, to leave out layers that lack it: what is bound then stays, as by kernels' own kernelize. strict:
    RuntimeError, and nothing changed, where a layer that a kernel could serve stays stock and neither an option nor the mapping
    says so, and where an entry of the mapping or an option that is off by default requests a layer that is not bound.
    kernel_config: which kernel a layer runs, by name: a dictionary, hotswap.kernel_config(...) or a KernelConfig
    (mapping.py has the forms); layers that it does not name run ours. ValueError where it names no layer of the model or a
    kernel that does not exist. allow_all_kernels: kernels of the Hub run though their publisher is not a trusted one.
    options: rms_norm, layer_norm, rope, mlp, activation, experts, cross_entropy, deformable_attention, mamba (all
    on), fused_linear_cross_entropy (off: with it a training forward gives a loss and no logits), linear (off), and attention
    (off: it is the attn_implementation of the model; True, or the name of a kernel). A second call keeps kernel_config and what
    an option had switched on, attention excepted, unless it says otherwise.
    TypeError for an argument of another kind and an option that does not exist; ValueError for a value that means nothing.
    """
    follows, mode = mode is None, check_mode(mode)
    before: Optional[Chosen] = model.__dict__.get("_hotswap_chosen")
    given, options = options, check_options(options, before and before.options)
    mapping = mapping_of(kernel_config) if kernel_config is not None or before is None else before.mapping
    if kernel_config is not None:
        check_attention_once(given, mapping)
    if isinstance(options["attention"], str):
        mapping = mapping.plus(ATTENTION, options["attention"])
    keeps = before is not None and kernel_config is None and not allow_all_kernels
    sources = before.sources if keeps else Sources(allow_all_kernels)
    chosen = Chosen(options, mapping, sources, mode_of(model, mode), strict, rebind if follows and mapping.has_modes else None)
    decisions, attend = [], None
    if enabled():
        again = before is not None and before.options == options and kernel_config is None  # rebind(), with every option
        off = {name for name, value in given.items() if value is False and name != ATTENTION and not again}
        planner = Planner(model, mapping, options, mode, chosen.sources, off)
        decisions = plan(model, planner)
        layers_off_by(chosen, model)  # for its errors
        attend = _attention_by(model, chosen)
    if strict:
        _check_strict(model, decisions, chosen)
    _take_out(model, only_ours=True)
    kernels_mapping.untie(model)
    ops = {(r.package, op) for d in decisions if (r := d.site.replacement) for op in r.ops}
    for d in decisions:
        _bind_decided(d)
    for module in model.modules():
        for replacement_of in AROUND:
            if (found := replacement_of(module)) is not None:
                binding.bind(module, found)
    model.__dict__["_hotswap_chosen"] = chosen
    if chosen.rebind is not None:
        binding.give_class(model)
    if attend == "":
        ops |= attention.bind(model)
    elif attend is not None:
        try:
            attention.bind_named(model, attend, chosen.sources.allow_all_kernels)
        except BaseException:  # of a repository that is not there, has no such function, or may not run
            _take_out(model)
            raise
    kernels_mapping.keep(model, decisions)
    register_sharding()
    _BASELINE[model] = counts(ops)
    return model


def rebind(model: nn.Module) -> None:
    """After train() or eval() of a model whose mapping has kernels by mode."""
    chosen: Chosen = model.__dict__["_hotswap_chosen"]
    kernelize(model, strict=chosen.strict, **chosen.options)


def is_bound(model: nn.Module) -> bool:
    return "_hotswap_chosen" in model.__dict__


def mapping_of_model(model: nn.Module) -> Mapping:
    """What its last kernelize() had; an empty one before the first."""
    return model.__dict__["_hotswap_chosen"].mapping if is_bound(model) else Mapping()


def _bind_decided(d: Decision) -> None:
    module, layer = d.site.module, d.site.layers[0]
    module.__dict__.setdefault("_hotswap_why", {})[layer] = (d.why, d.by_choice)
    if d.replacement is not None:
        bound_with = d.replacement.bound_with
        for bound in bound_with(module) if bound_with else [(module, d.replacement)]:
            binding.bind(*bound)
        if d.source is not None and not d.source.bundled:
            module.__dict__["_hotswap_source"] = (d.source.name, d.source.layer, d.source.version, d.source.variant)


def _attention_by(model, chosen: Chosen) -> Optional[str]:
    """None: the model's own attention; "": our package; else the name of a kernel for transformers."""
    choice = attention_choice(model, chosen)
    if choice is None:
        return "" if chosen.options["attention"] else None
    if choice.ref is None or choice.ref.stock:
        return None
    ref = choice.ref
    if serves_attention(ref, chosen):
        check_attention_layer(ref)
        return ""
    if not ref.repo:
        raise ValueError(
            f"expected attention by the name of a repository; got {ref.text!r}; set LOCAL_KERNELS=org/name=FOLDER and map org/name"
        )
    which = concrete(ref)
    revision = which.revision or (f"v{which.version}" if which.version is not None else "")
    return f"{ref.repo}{'@' if revision else ''}{revision}{':' if ref.layer else ''}{ref.layer}"


def _check_strict(model: nn.Module, decisions: list, chosen: Chosen) -> None:
    if not enabled():
        raise RuntimeError("strict: expected a kernel for every layer; got USE_HUB_KERNELS, which switches all off; unset it")
    missed = [
        f"{d.site.name or 'the model'} ({class_of(d.site.module).__name__}): {d.why}"
        for d in decisions
        if d.replacement is None and not d.by_choice
    ]
    missed += [
        f"{name or 'the model'} ({class_of(model.get_submodule(name)).__name__}): no {layer}: {why}"
        for name, layer, why in requests.unmet(model, chosen, [d.site for d in decisions])
    ]
    if missed:
        raise RuntimeError(
            f"strict: expected a kernel for every layer; got none for {', '.join(missed)}; map these layers to kernels, or to \"\" "
            "to keep them stock, or drop strict"
        )


def _take_out(model: nn.Module, only_ours: bool = False) -> None:
    """only_ours: layers that kernels' own kernelize bound keep what they run."""
    attention.take_out(model)
    model.__dict__.pop("_hotswap_chosen", None)
    for module in model.modules():
        binding.take_out(module, only_ours)
        for name in ("_hotswap_why", "_hotswap_source"):
            module.__dict__.pop(name, None)
    _BASELINE.pop(model, None)


@checked(model=MODEL)
@one_at_a_time
def unkernelize(model: nn.Module) -> nn.Module:
    """Takes every kernel of ours out again, also those that kernel_config() brought; returns the model. TypeError for what is none."""
    _take_out(model)
    kernels_mapping.forget(model)
    return model


# ---- what a module runs ----------------------------------------------------------------------------------------------


def counts(ops) -> dict:
    return {f"{name}.{op}": package(name).calls(op) for name, op in ops}
