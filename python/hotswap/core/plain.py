"""What an instance of a module carries that its class does not show: hooks, a forward of its own, parametrizations, weights of another
class than torch's. A kernel that takes the place of a module's parts must leave such parts to themselves."""

import types
from typing import Callable, Optional

import torch
from torch import nn
from torch.nn.modules import module as _module

from hotswap.core.packages import owner
from hotswap.core.replacement import class_of, inside, names_in, read_by

PLAIN = (bool, int, float, str)
NO_SETTINGS = frozenset({"training", "layer_idx", "forward", "_old_forward", "_hf_hook"})  # attributes that no formula depends on
SLOTS = ("_old_forward", "forward")  # where an instance keeps a forward; accelerate's hooks call what is under the first
_TENSORS = (torch.Tensor, nn.Parameter)
SHARDING = ("torch.distributed.", "deepspeed.")  # their hooks bring a module's weights and send them away again
ZERO = ("deepspeed.runtime.zero.", "deepspeed.utils.nvtx")  # stage 3 hooks every module, those without weights too


def _comes_from(hook) -> str:
    while (inner := getattr(hook, "func", None) or getattr(hook, "__func__", None)) is not None:
        hook = inner
    return getattr(hook, "__module__", None) or type(hook).__module__


def has_hooks(module: nn.Module, but_from: tuple = ()) -> bool:
    """but_from: hooks of modules whose names begin so do not count."""
    if not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks):
        return False
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not but_from or any(not _comes_from(hook).startswith(but_from) for hooks in kinds for hook in hooks.values())


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
    return isinstance(function, types.FunctionType) and function.__dict__.get("hotswap_forward") is function  # wrappers copy the attributes


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
        if has_hooks(part, but_from=() if part._parameters or part._modules else ZERO):
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
    """What a forward looks up among the globals of its file, of which a replacement runs the code with functions of ours: as it was when
    the replacement was made. The replacement keeps it so."""

    def __init__(self, forward: Callable):
        function = inside(forward)
        self.scope = function.__globals__
        self.found = tuple((name, self.scope[name]) for name in sorted(names_in(function.__code__)) if name in self.scope)

    def __eq__(self, other):
        same = isinstance(other, Looked) and self.scope is other.scope and len(self.found) == len(other.found)
        return same and all(a[0] == b[0] and a[1] is b[1] for a, b in zip(self.found, other.found))

    def __hash__(self):
        return hash(tuple(id(value) for _, value in self.found))

    def why_call(self, module: nn.Module) -> str:
        """As Part's."""
        scope = self.scope
        for name, value in self.found:
            if scope.get(name) is not value:
                return f"{name} was exchanged"
        return ""


class Attributes:
    """The values and switches that the methods of a module's class read, as they were when the module was bound: a kernel that replaces
    the class's forward may know some of them by value, and others not at all."""

    def __init__(self, module: nn.Module):
        read = read_by(class_of(module)) - NO_SETTINGS
        self.values = tuple((k, v) for k, v in vars(module).items() if k in read and (v is None or isinstance(v, PLAIN)))
        methods = {k for base in class_of(module).__mro__ if base not in (nn.Module, object) for k in vars(base)}
        self.functions = tuple(sorted(k for k in read & methods if callable(getattr(class_of(module), k))))

    def why_call(self, module: nn.Module) -> str:
        """As Part's."""
        carried = module.__dict__
        for name, value in self.values:
            if carried.get(name, self) != value:
                return f"it has another {name}"
        for name in self.functions:
            if name in carried:
                return f"it has a {name} of its own"
        return ""


# ---- functions that a model names -----------------------------------------------------------------------------------


def is_foreign(function: Callable, module: nn.Module) -> bool:
    """Is it of neither transformers, nor a package of ours, nor the file of the module's class? Attributes that a decorator copies do not count."""
    function = getattr(function, "func", function)
    file = getattr(function, "__globals__", {}).get("__name__") or getattr(function, "__module__", None) or ""
    own = inside(class_of(module).forward).__globals__.get("__name__")
    return not (file.split(".")[0] in ("transformers", "hotswap") or file == own or owner(function))
