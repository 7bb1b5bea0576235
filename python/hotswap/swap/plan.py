"""Which kernel each layer of a model is to run, and of each that stays stock the reason: decided before anything is bound."""

from typing import NamedTuple, Optional

import torch
from torch import nn

from hotswap.core.devices import device_name, devices_of, dtypes_of
from hotswap.core.mapping import ALIASES, ATTENTION, DECODER_LAYER, STOCK, Choice, Mapping
from hotswap.core.matcher import Matcher
from hotswap.core.packages import dtypes, package
from hotswap.core.replacement import Replacement
from hotswap.core.sources import NoVariant, Source, Sources, bundled
from hotswap.generation import decode
from hotswap.matchers import attention, projections
from hotswap.matchers.causal_lm import head_of
from hotswap.matchers.registered import OPTIONS, match
from hotswap.swap import binding, others

_OFF = {"linear": "torch's own product"}
_PARTS = ("SwiGLUMLP", "GeGLUMLP", "Experts", "Llama4TextMoe")  # whose activation is in their kernel


class Site(NamedTuple):
    """A layer of a model that a kernel may serve."""

    name: str  # of the module
    module: nn.Module
    layers: tuple  # its names in a mapping: the slot's first, then the one that its class has for kernels
    replacement: Optional[Replacement]  # ours that computes the same; None: its class only looks like one
    matcher: Matcher = Matcher()  # the one that knows such layers
    holder: Optional["Site"] = None  # the module around it whose class has a name for kernels that means this layer (gpt_oss)


class Decision(NamedTuple):
    site: Site
    replacement: Optional[Replacement] = None  # None: stock
    why: str = ""  # it is stock; of a bound one, what there is to say
    by_choice: bool = False  # stock because an option or the mapping says so: strict does not mind
    source: Optional[Source] = None  # of a mapping's kernel


def sites(model: nn.Module, mapping: Mapping) -> list:
    """Every layer that has a kernel, or looks as if; and each whose class has a name for kernels that the mapping says."""
    found, holders = [], {}
    for name, module in model.named_modules():
        named = getattr(type(module), "kernel_layer_name", None)
        also = (named,) if named else ()
        matcher, replacements, looks = match(module)
        for r in reversed(replacements):  # the fused loss, then the plain one
            found.append(Site(name, module, tuple(dict.fromkeys((*(r.names or (r.layer,)), *also))), r, matcher))
        if looks:
            found.append(Site(name, module, tuple(dict.fromkeys((looks, *also))), None, matcher))
        elif not replacements and named:
            holders[name] = Site(name, module, (named,), None)
    found = [_held(site, holders) for site in found]
    meant = {site.holder.name for site in found if site.holder}
    return found + [s for s in holders.values() if s.name not in meant and mapping.names(s.layers)]


def _held(site: Site, holders: dict) -> Site:
    """Of experts in a block whose class is MegaBlocksMoeMLP to kernels: both names in a mapping mean them."""
    holder = holders.get(site.name.rpartition(".")[0])
    return site._replace(layers=(*site.layers, *holder.layers), holder=holder) if holder and site.layers[0] == "Experts" else site


def mode_of(model: nn.Module, mode: set) -> str:
    """Its name in a mapping: of `mode`, or where that is empty of the model as it is now."""
    now = {"TRAINING" if model.training else "INFERENCE"} if not mode else mode
    return "|".join(name for name in ("INFERENCE", "TRAINING", "TORCH_COMPILE") if name in now)


class Planner:
    """mode: its names, such as {"TRAINING"}; empty: every mode. off: options that the call itself has as False."""

    def __init__(self, model, mapping: Mapping, options: dict, mode: set, sources: Sources, off=frozenset()):
        self.mapping, self.options, self.mode, self.sources, self.off = mapping, options, mode, sources, off
        self.devices, self.dtypes = devices_of(model), dtypes_of(model)
        self.asked = mode_of(model, mode)

    def decide(self, site: Site) -> Decision:
        device = device_name(devices_of(site.module) or self.devices)
        choice = self.mapping.choice(site.layers, device, self.asked)
        if choice is None:
            return self._default(site, self.mapping.elsewhere(site.layers, device))
        if choice.ref is None:
            return Decision(site, why=choice.why, by_choice=self._is_chosen(site, choice))
        if choice.ref.stock:
            return Decision(site, why=STOCK, by_choice=True)
        if site.replacement is not None and site.replacement.option in self.off:
            raise ValueError(
                f"expected one choice of {site.layers[0]}; got {site.replacement.option}=False and {choice.key}={choice.ref.text!r} in the "
                "kernel mapping; leave one out"
            )
        source = self.sources.find(choice.ref, site.layers, device)
        if isinstance(source, NoVariant):
            return Decision(site, why=f"{choice.ref.text}: {source}")
        return self._of_bundled(site, source, choice.key) if source.bundled else self._of_others(site, source)

    def _is_chosen(self, site: Site, choice: Choice) -> bool:
        """Is the layer stock since something else was chosen? Not so where an option that is off by default requests it."""
        r = site.replacement
        if choice.part:
            return r is None or OPTIONS[r.option] or not self.options[r.option]
        return not choice.key and self._is_off(site)

    def _is_off(self, site: Site) -> bool:
        """Would it be stock with every default kernel: by an option, or since it runs only elsewhere?"""
        r = site.replacement
        return r is not None and (not self.options[r.option] or not projections.is_here(site.module, r))

    def _default(self, site: Site, note: str = "") -> Decision:
        """note: of the mapping, which has something for other devices."""
        r = site.replacement
        if r is None:
            return Decision(site, why=site.matcher.why_not(site.module))
        if not self.options[r.option]:
            return Decision(site, why=_OFF.get(r.option, f"{r.option} is off"), by_choice=True)
        decision = self._checked(site, r)
        return decision._replace(why="; ".join(filter(None, (decision.why, note))))

    def _checked(self, site: Site, r: Replacement, source: Optional[Source] = None) -> Decision:
        why = self._lacks(site.module, r) or binding.why_not(site.module, r)
        return Decision(site, why=why) if why else Decision(site, r, source.note if source else "", source=source)

    def _lacks(self, module: nn.Module, r: Replacement) -> str:
        """What of mode, device or dtype the kernel cannot do; empty: nothing."""
        made_here = r.layer_class is None
        if "TRAINING" in self.mode and not made_here and not getattr(r.layer_class, "has_backward", False):
            return f"{r.package}:{r.layer} has no backward"
        if "TORCH_COMPILE" in self.mode and not made_here and not getattr(r.layer_class, "can_torch_compile", False):
            return f"{r.package}:{r.layer} is not for torch.compile"
        return lacks(module, r, self.devices, self.dtypes)

    def _of_bundled(self, site: Site, source: Source, key: str) -> Decision:
        """key: of the mapping's entry. One key for several layers, as "MLP", names a kernel of one of them; of any other layer is
        an error."""
        r = site.replacement
        known = bundled()[source.name].layers
        if source.layer not in {*site.layers, *(known.get(name) for name in site.layers)}:
            if source.layer not in ALIASES.get(key, ()):
                raise ValueError(
                    f"expected a kernel for {site.layers[0]} ({site.name or 'the model'}); got {source.name}:{source.layer}, which "
                    f"serves {source.layer}; map another layer of a package"
                )
            return Decision(site, why=f"{source.name}:{source.layer} serves {source.layer} and not {site.layers[0]}")
        if r is None:
            return Decision(site, why=site.matcher.why_not(site.module))
        return self._checked(site, r, source)

    def _of_others(self, site: Site, source: Source) -> Decision:
        if site.holder and source.layer in site.holder.layers:
            site = site.holder
        option = site.replacement.option if site.replacement else "kernel"
        r = others.of_others(site.module, site.matcher, site.layers[0], option, source.name, source.layer_class)
        if why := others.why_not(site.module, r) or binding.why_not(site.module, r):
            return Decision(site, why=f"{source.name}: {why}")
        declared = getattr(source.layer_class, "has_backward", True)  # as kernels takes it
        if "TRAINING" in self.mode and not declared:
            return Decision(site, why=f"{source.name}:{source.layer} has no backward")
        if "TORCH_COMPILE" in self.mode and not getattr(source.layer_class, "can_torch_compile", False):
            return Decision(site, why=f"{source.name}:{source.layer} is not for torch.compile")
        return Decision(site, r, "" if declared else "inference alone: without a backward of its own", source=source)


def lacks(module: nn.Module, r: Replacement, of_model: set, dtypes_of_model: set) -> str:
    """Why a bundled kernel does not serve this module where it is and as it is; empty: it does. A layer without parameters is where
    its model is, and in its types."""
    devices = devices_of(module) or of_model
    if not devices <= {"cpu", "meta"} and "-cpu-" in package(r.package).variant:
        return f"the package {r.package} has kernels for the CPU alone"
    if not devices <= {"cpu", "cuda", "meta"}:
        return f"the package {r.package} has no kernels for {', '.join(sorted(devices))}"
    if torch.float64 in (dtypes_of(module) or dtypes_of_model) - dtypes(r.package):
        have = ", ".join(sorted(str(t).removeprefix("torch.") for t in dtypes(r.package)))
        return f"{r.package}:{r.layer} has no float64, only {have}"
    return ""


def _is_part(decision: Decision, whole: dict) -> bool:
    """Of an activation: is it in the kernel of what holds it?"""
    path = decision.site.name.split(".")
    return any(".".join(path[:end]) in whole for end in range(len(path)))


def plan(model: nn.Module, planner: Planner) -> list:
    """A Decision for each site. ValueError for a key of the mapping that names no layer of the model."""
    found = sites(model, planner.mapping)
    check_keys(planner.mapping, found, model)
    decisions = [planner.decide(site) for site in found]
    whole = {}
    for d in decisions:
        if d.replacement is not None and d.site.layers[0] in _PARTS:
            inner = ".experts" if d.site.layers[0] == "Llama4TextMoe" else ""
            whole[f"{d.site.name}{inner}".removeprefix(".")] = d.site.layers[0]
    fused = {id(d.site.module): d.site.module for d in decisions if d.replacement and d.site.layers[0] == "LinearCrossEntropy"}
    return [_within(d, whole, fused) for d in decisions]


def _within(d: Decision, whole: dict, fused: dict) -> Decision:
    if d.replacement is None:
        return d
    if d.replacement.option == "activation" and _is_part(d, whole):
        holder = next(whole[name] for name in whole if d.site.name.startswith(f"{name}.") or not name)
        return Decision(d.site, why=f"part of {holder}, which is bound", by_choice=True)
    if d.site.layers[0] == "ForCausalLMLoss" and id(d.site.module) in fused:
        return Decision(d.site, why="LinearCrossEntropy goes before it", by_choice=True)
    if d.replacement.option == "linear" and any(d.site.module is head_of(model) for model in fused.values()):
        return Decision(d.site, why="in the kernel of LinearCrossEntropy", by_choice=True)
    return d


def check_keys(mapping: Mapping, found: list, model: nn.Module) -> None:
    known = {layer for site in found for layer in site.layers}
    if attention._configs(model):
        known.add(ATTENTION)
    if decode.plain_layers(model):
        known.add(DECODER_LAYER)
    for key in mapping.table:
        if not known & {key, *ALIASES.get(key, ())}:
            have = ", ".join(sorted(known)) or "none"
            raise ValueError(f"expected layers that the model has: {have}; got {key!r} in the kernel mapping; correct it or leave it out")
