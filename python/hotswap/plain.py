"""What an instance of a module carries that its class does not show: hooks, a forward of its own, parametrizations, weights of another
class than torch's. A kernel that takes the place of a module's parts must leave such parts to themselves."""

import types
from typing import Callable, Optional

import torch
from torch import nn
from torch.nn.modules import module as _module

from hotswap.packages import owner
from hotswap.replacement import class_of

SLOTS = ("_old_forward", "forward")  # where an instance keeps a forward; accelerate's hooks call what is under the first
_TENSORS = (torch.Tensor, nn.Parameter)
_SHARDING = ("torch.distributed.", "deepspeed.")  # their hooks bring a module's weights and send them away again


def _comes_from(hook) -> str:
    while (inner := getattr(hook, "func", None) or getattr(hook, "__func__", None)) is not None:
        hook = inner
    return getattr(hook, "__module__", None) or type(hook).__module__


def has_hooks(module: nn.Module, but_sharding: bool = False) -> bool:
    """but_sharding: the hooks of FSDP and of DeepSpeed do not count."""
    if not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks):
        return False
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not but_sharding or any(not _comes_from(hook).startswith(_SHARDING) for hooks in kinds for hook in hooks.values())


def has_global_hooks() -> bool:
    """Hooks on every module of the process: they are due for each part that a kernel computes without calling it."""
    return _module._has_any_global_hook()


def odd_weight(module: nn.Module) -> str:
    """The class of a weight of the module's own that is no plain tensor (a quantised one), or "". DTensors are plain: the packages
    know them."""
    for weight in module._parameters.values():
        if weight is not None and type(weight) not in _TENSORS and type(weight).__name__ != "DTensor":
            return type(weight).__name__
    return ""


def quantised_weight(module: nn.Module) -> str:
    """What a linear layer's weight is that is stored in fewer bits, for the report: its class, its dtype, or the parameters that it
    is packed in; "" for a plain one and for other layers."""
    if not isinstance(module, nn.Linear):
        return ""
    weight = module._parameters.get("weight")
    if weight is None:
        packed = sorted(name for name, value in module._parameters.items() if value is not None and name.startswith("weight_"))
        return ", ".join(packed) if "weight_packed" in packed else ""
    is_float = weight.is_floating_point() and weight.dtype.itemsize > 1
    return "" if is_float else odd_weight(module) or str(weight.dtype).removeprefix("torch.")


def accelerate_hook(module: nn.Module, but_placing: bool = False) -> str:
    """The class of the hook that accelerate has put around the module's forward, or "". but_placing: one that only brings weights and
    inputs to their device does not count."""
    hook = module.__dict__.get("_hf_hook")
    if hook is None:
        return ""
    odd = [h for h in getattr(hook, "hooks", (hook,)) if not (but_placing and type(h).__name__ == "AlignDevicesHook")]
    return type(odd[0]).__name__ if odd else ""


def is_parametrized(module: nn.Module) -> bool:
    return "parametrizations" in module._modules


# ---- a forward of its own ---------------------------------------------------------------------------------------------


def dispatches(function) -> bool:
    """Is it the forward of a bound module's class?"""
    return isinstance(function, types.FunctionType) and "hotswap_stock" in function.__dict__


def is_stock(module: nn.Module, value) -> bool:
    """Is it the forward of the module's class, as a method of some instance?"""
    return isinstance(value, types.MethodType) and value.__func__ in (class_of(module).forward, type(module).forward)


def wrapped_forward(module: nn.Module):
    """The forward that somebody has put on this instance; None: there is none but its class's and ours."""
    value = next((module.__dict__[name] for name in SLOTS if name in module.__dict__), None)
    function = getattr(value, "__func__", None)
    return None if value is None or is_stock(module, value) or dispatches(function) or owner(function) else value


def own_forward(module: nn.Module):
    """As wrapped_forward(), where it does not lead to one of ours: somebody wrapped a forward before it was bound."""
    value = wrapped_forward(module)
    return None if value is None or reaches(value, dispatches) else value


def reaches(function, is_wanted: Callable) -> bool:
    """Does this callable hold one that is wanted, in the usual ways of wrapping: bound methods, partials, decorators, closures?"""
    waiting, seen = [function], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen or len(seen) > 100:
            continue
        seen.add(id(one))
        if is_wanted(one):
            return True
        waiting += [getattr(one, name, None) for name in ("__func__", "func", "__wrapped__")]
        if isinstance(one, types.FunctionType):
            waiting += [v for cell in one.__closure__ or () if callable(v := _content(cell)) and not isinstance(v, (nn.Module, type))]
    return False


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


# ---- parts that a kernel computes without calling them --------------------------------------------------------------


def _values(part) -> tuple:
    return tuple((k, v) for k, v in vars(part).items() if isinstance(v, (bool, int, float, str)) and k[0] != "_" and k != "training")


class Part:
    """One of them as it was when its module was bound. path: of attributes, dotted."""

    def __init__(self, module: nn.Module, path: str):
        self.path, self.names = path, path.split(".")
        found = self._of(module)
        self.kind = type(found) if isinstance(found, nn.Module) else found
        self.values = _values(found) if isinstance(found, nn.Module) else ()

    def _of(self, module: nn.Module) -> Optional[nn.Module]:
        for name in self.names:
            found = module._modules.get(name)  # nn.Module's own look-up is slow, and this is asked at each call
            module = getattr(module, name, None) if found is None else found
        return module

    def why_call(self, module: nn.Module) -> str:
        """Why the part of this module must be called as ever; "": there is no reason."""
        part = self._of(module)
        if not isinstance(part, nn.Module):
            return "" if part is self.kind else f"{self.path} was exchanged"
        carried = part.__dict__
        if type(part) is not self.kind:
            return f"{self.path} is a {type(part).__name__}"
        if "forward" in carried and own_forward(part) is not None:
            return f"{self.path} has a forward of its own"
        if has_hooks(part):
            return f"{self.path} has hooks"
        if "_hf_hook" in carried and (hook := accelerate_hook(part)):
            return f"{self.path} has accelerate's {hook}"
        if name := odd_weight(part):
            return f"a weight of {self.path} is a {name}"
        for name, value in self.values:
            if carried.get(name) != value:
                return f"{self.path} has another {name}"
        return ""


class Looked:
    """A function that a module's forward looks up among the globals of its file and that a replacement exchanges for ours: as it was when
    the replacement was made."""

    def __init__(self, scope: dict, name: str):
        self.scope, self.name, self.function = scope, name, scope.get(name)

    def why_call(self, module: nn.Module) -> str:
        """As Part's."""
        return "" if self.scope.get(self.name) is self.function else f"{self.name} was exchanged"
