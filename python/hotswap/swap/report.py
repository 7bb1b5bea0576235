"""The report: what every layer of a model runs, and of each that is stock the reason, read from the modules as they are now."""

import contextlib
from dataclasses import dataclass, field, replace
from typing import Optional

from torch import nn

from hotswap.core.arguments import MODEL, checked
from hotswap.core.devices import devices_of, dtypes_of
from hotswap.core.packages import owner, package
from hotswap.core.replacement import class_of
from hotswap.core.switch import OFF, enabled
from hotswap.generation import decode
from hotswap.generation.checks import why_not_generated
from hotswap.matchers import attention, mixers, projections
from hotswap.swap import binding, elsewhere, requests
from hotswap.swap.bind import _BASELINE, counts, mapping_of_model, one_at_a_time
from hotswap.swap.plan import Site, lacks, sites


_IN_EXPERTS = tuple(f"part of {layer}, which is bound" for layer in ("Experts", "Llama4TextMoe"))


@dataclass
class Row:
    name: str  # of the module
    layer: str  # its name in a kernel mapping
    package: Optional[str]  # None: stock; an id where kernels' own kernelize bound it
    version: Optional[int] = None
    variant: Optional[str] = None
    ops: tuple = ()
    why: str = ""  # it is stock; of a bound one, what it leaves to others
    by_choice: bool = False  # stock because an option or the mapping says so
    form: str = ""  # which of the layer's forms is bound


@dataclass
class Report:
    rows: list
    calls: dict = field(default_factory=dict)  # "norm.rms_norm" -> calls in this process since the model was bound
    why_not_captured: str = ""  # hotswap.generate runs each step of it by itself on a GPU; "": as a CUDA graph
    why_not_generated: str = ""  # hotswap.generate refuses the model; "": it takes it, or nothing generates with it

    def __str__(self):
        lines = []
        groups: dict = {}
        for row in self.rows:
            groups.setdefault((row.layer, row.package, row.version, row.variant, row.why), []).append(row.name)
        for (layer, name, version, variant, why), names in groups.items():
            note = f"; {why}" if why else ""
            where = f"{name} v{version} ({variant}){note}" if version else f"{name}{note}" if name else f"stock: {why}"
            first = names[0] or "the model"
            lines.append(f"{layer:20} x{len(names):<4} {where:52} {first}{', ...' if len(names) > 1 else ''}")
        if self.why_not_generated:
            lines.append(self.why_not_generated)
        elif self.why_not_captured:
            lines.append(f"hotswap.generate captures no steps in a CUDA graph: {self.why_not_captured}")
        lines += [f"{op:36} {count} calls" for op, count in sorted(self.calls.items()) if count]
        return "\n".join(lines)


@contextlib.contextmanager
def _uncounted(model: nn.Module, ops: set):
    """Layers that are tried on a few elements in here are no calls of the model's."""
    before = counts(ops)
    yield
    baseline = _BASELINE.get(model, {})
    baseline.update({op: baseline[op] + count - before[op] for op, count in counts(ops).items() if op in baseline})


@checked(model=MODEL)
@one_at_a_time
def report(model: nn.Module) -> Report:
    """What every layer runs that is bound, could be, or looks as if: read from the modules as they are now. TypeError for what is no
    model."""
    rows, ops, where = [], set(), (devices_of(model), dtypes_of(model))
    in_mixers, found_sites = set(), sites(model, mapping_of_model(model))
    for site in found_sites:
        if site.holder and _runs_others(site.holder.module):
            site = site.holder
        r = site.replacement
        if r is not None and not projections.is_here(site.module, r):
            continue
        row = _row(site, where)
        ops |= {(row.package, op) for op in row.ops}
        if mixers.LAYER in site.layers:
            rows += _by_function(row, site)
            in_mixers |= {f"{site.name}.{name}" for name, _ in site.module.named_children()}
        elif not _inside(site, in_mixers):
            rows.append(_of_holder(row, site))
    attends = dict(attention.stock_rows(model))
    rows += [Row(name, "attention", None, why=why) for name, why in attends.items()]
    adds = any(row.layer == projections.ADD_NORM and row.package for row in rows)  # in whole layers
    chosen = model.__dict__.get("_hotswap_chosen")
    with _uncounted(model, ops):
        more = [row for row in elsewhere.rows(model, set(attends)) if not (adds and row[1] == projections.ADD_NORM)]
        unmet = requests.unmet(model, chosen, found_sites) if chosen is not None and enabled() else []
    rows += [Row(name, layer, None, why=why, by_choice=(name, layer, why) not in unmet) for name, layer, why in more]
    rows += _stale_losses(model)
    there = {(row.name, row.layer) for row in rows}
    rows += [Row(*missed[:2], None, why=missed.why) for missed in unmet if missed[:2] not in there]
    order = {name: i for i, (name, _) in enumerate(model.named_modules())}
    rows.sort(key=lambda row: (order[row.name], row.package is None))  # of two losses the one that runs first
    for name, module in model.named_modules():
        rows += _func_rows(name, module)
        if made := attention.running(module):
            rows.append(Row(name, "attention", made.name, made.version, made.variant, attention.OPS, attention.note(module)))
            ops |= {(made.name, op) for op in attention.OPS}
    found, before = counts(ops), _BASELINE.get(model, {})
    generates = hasattr(model, "can_generate") and model.can_generate()
    why_not_captured = decode.why_not_captured(model) if generates else ""
    calls = {op: count - before.get(op, 0) for op, count in found.items()}
    return Report(rows, calls, why_not_captured, why_not_generated(model) if generates else "")


def _stale_losses(model: nn.Module) -> list:
    held = [(name, module) for name, module in model.named_modules() if "_loss_function" in module.__dict__]
    if not held:
        return []
    from hotswap.matchers import loss

    made, own = [(name, why) for name, module in held if (why := loss.stale_loss(module))], package("loss")
    return [Row(name, "ForCausalLMLoss", own.name, own.version, own.variant, loss.OPS, why) for name, why in made]


def _row(site: Site, where: tuple) -> Row:
    name, module, layer, r = site.name, site.module, site.layers[0], site.replacement
    why, by_choice = module.__dict__.get("_hotswap_why", {}).get(layer, ("", False))
    stock = "" if r is None else binding.why_stock(module, r) or lacks(module, r, *where)
    if r is not None and not stock:
        made = package(r.package)
        notes = [note for note in (why, r.note, projections.note(module, r)) if note]
        return Row(name, layer, made.name, made.version, made.variant, r.ops, "; ".join(notes), form=r.layer)
    if (source := module.__dict__.get("_hotswap_source")) is not None and _runs_others(module):
        return Row(name, layer, source[0], source[2], source[3], why=why, form=source[1])
    if package_id := owner(getattr(module.__dict__.get("forward"), "__func__", None)):  # by kernels' own kernelize, from a mapping
        return Row(name, getattr(class_of(module), "kernel_layer_name", layer), package_id)
    if stock and binding.is_bound(module, r):
        return Row(name, layer, None, why=stock)
    return Row(name, layer, None, why=why or _why_stock(site, where), by_choice=by_choice)


def _by_function(row: Row, site: Site) -> list:
    """A mixer's row as one for each function that it calls, under the name of the part."""
    made = []
    for part, layer, ops in mixers.functions_of(site.module):
        bound = row.package is not None and set(ops) <= set(row.ops)
        why = row.why if bound or row.package is None else f"{class_of(site.module).__name__} computes something else"
        name = ".".join(p for p in (row.name, part) if p)
        own = dict(package=row.package, version=row.version, variant=row.variant, ops=ops) if bound else dict(package=None)
        made.append(replace(row, name=name, layer=layer, why=why, **({"version": None, "variant": None, "ops": ()} | own)))
    return made


def _of_holder(row: Row, site: Site) -> Row:
    return replace(row, name=site.holder.name, layer=site.holder.layers[0]) if site.holder else row


def _inside(site: Site, in_mixers: set) -> bool:
    """An activation within experts, or one that a mixer names to its functions, has no row of its own."""
    if site.replacement is not None and site.replacement.option == "activation" and site.name in in_mixers:
        return True
    return site.replacement is not None and site.module.__dict__.get("_hotswap_why", {}).get(site.layers[0], ("",))[0] in _IN_EXPERTS


def _runs_others(module: nn.Module) -> bool:
    """Is what a mapping's package of others brought still there?"""
    bound = module.__dict__.get("_hotswap")
    return bound is not None and bound.replacement is not None and not binding.why_stock(module, bound.replacement)


def _why_stock(site: Site, where: tuple) -> str:
    """Of a layer that no decision keeps stock, or that was bound and runs something else now."""
    module, r = site.module, site.replacement
    if r is None:
        return site.matcher.why_not(module)
    if not enabled():
        return OFF
    if why := lacks(module, r, *where):
        return why
    if "_hotswap_why" in module.__dict__:
        return binding.why_not(module, r) or "what was bound was taken from it since"
    return "kernelize() has not seen it"


def _func_rows(name: str, module: nn.Module) -> list:
    """Functions that kernels' own kernelize bound, for every model of the process."""
    rows = []
    for function_name, function in getattr(module, "_kernel_funcs", {}).items():
        package_id = owner(getattr(function.__dict__.get("forward"), "__func__", None))
        if package_id:
            rows.append(Row(f"{name}.{function_name}", type(function).kernel_layer_name, package_id))
    return rows
