"""Layers of packages that are not ours, and whether one computes what the module's class does."""

import inspect
from torch import nn

from hotswap.core.agree import Trial
from hotswap.core.matcher import Matcher
from hotswap.core.replacement import Replacement, class_of
from hotswap.matchers.registered import matches


def of_others(module: nn.Module, matcher: Matcher, slot: str, option: str, name: str, layer_class: type) -> Replacement:
    """Such a layer for this module. matcher: the one that knows it. name: the package's, for the report."""
    return Replacement(option, slot, name, (), layer_class=layer_class, **matcher.stand_in(module, layer_class))


def why_not(module: nn.Module, candidate: Replacement) -> str:
    """Why a layer of a package that is not ours cannot stand in for the module's own; empty: it can. Both are run on a few
    numbers on the CPU, where the class is one that we have a question for and the kernel runs there."""
    layer, wanted = candidate.layer_class, class_of(module)
    if not issubclass(layer, nn.Module) or layer.__init__ is not nn.Module.__init__:
        return f"{layer.__name__} is no layer without a state of its own"
    if candidate.forward is layer.forward:
        kinds = [[p.kind for p in inspect.signature(c.forward).parameters.values()] for c in (layer, wanted)]
        if kinds[0] != kinds[1]:
            return f"the forward of {layer.__name__} takes other arguments than that of {wanted.__name__}"
    raised = []

    def watched(*args, **kwargs):
        try:
            return candidate.forward(*args, **kwargs)
        except Exception as error:
            raised.append(error)
            raise RuntimeError from error

    forward = candidate.forward if candidate.forward is not layer.forward else watched
    with Trial(candidate._replace(forward=forward)) as trial:
        try:
            matches(module)
        except Exception as error:  # whatever a foreign layer raises on our numbers
            raised.append(error)
    on_cpu = all(p.device.type == "cpu" for p in module.parameters())
    if raised and on_cpu:
        return f"{layer.__name__} cannot stand in for {wanted.__name__}: {type(raised[0]).__name__}: {raised[0]}"
    return "" if trial.agrees is not False or raised else f"{layer.__name__} computes something else than {wanted.__name__}"
