"""What may stand in for a module's own forward, and which class the module is asked for, and a forward that sees
other functions."""

import functools
import inspect
import sys
import types
from typing import Callable, NamedTuple, Optional

from torch import nn


class Replacement(NamedTuple):
    option: str  # the switch of kernelize() that turns it off
    layer: str
    package: str
    ops: tuple[str, ...]  # forward, forward for training where it is another, backward
    forward: Callable  # (self, ...) as the class's own
    layer_class: Optional[type] = None  # of the package; None: the forward is made here
    attribute: Optional[str] = None  # a function that the module holds under this name is replaced, not its forward
    note: str = ""  # what it leaves to the class's own, for the report
    parts: tuple = ()  # of the module, as dotted paths: what the forward computes without calling it
    looked: tuple = ()  # plain.Looked of the class's forward, where the forward is its code with functions of ours
    choice: tuple = ()  # what else is checked at each call, as a part is: a choice that the model's config makes
    why_not: Optional[Callable] = None  # (module, is it bound to this already) -> why this instance is not for it, or ""
    names: tuple = ()  # of the layer in a kernel mapping, the report's first; (): `layer` alone
    bound_with: Optional[Callable] = None  # (module) -> [(module, Replacement, what is put there)] of all that is bound at once; None: itself


def class_of(module: nn.Module) -> type:
    """Its class; behind those that FSDP2, torch's parametrizations and a binding of ours have put before it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    found = type(module)
    while True:
        if "hotswap_stock" in found.__dict__:
            found = found.hotswap_stock
        elif fsdp is not None and found.__bases__[0] is fsdp.FSDPModule:
            found = found.__bases__[1]
        elif "parametrizations" in module._modules and found.__name__.startswith("Parametrized"):
            found = found.__bases__[0]
        else:
            return found


def running(module: nn.Module) -> Optional[Callable]:
    """The forward of the replacement that the module is bound to, where nothing stands before it; else None."""
    carried = module.__dict__
    if "forward" in carried:
        return getattr(carried["forward"], "__func__", None)  # by kernels' own kernelize
    binding = carried.get("_hotswap")
    return None if binding is None or binding.why_stock(module) else binding.forward


def names_in(code) -> set:
    """The globals and attributes that a function's code, and those of functions within it, look up."""
    within = [c for c in getattr(code, "co_consts", ()) if isinstance(c, types.CodeType)]
    return set(getattr(code, "co_names", ())).union(*map(names_in, within))


@functools.lru_cache(maxsize=None)
def read_by(module_class: type) -> frozenset:
    """Names that the methods of a class look up, its constructors aside: among them each attribute that its formula may depend on."""
    found: set = set()
    for base in module_class.__mro__:
        methods = {} if base in (nn.Module, object) else vars(base)
        for name, value in methods.items():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if name != "__init__" and isinstance(function, types.FunctionType):
                found |= names_in(inside(function).__code__)
    return frozenset(found)


def seeing(forward: Callable, functions: dict) -> Callable:
    """The same code, seeing other functions under their names. Without __name__, or torch.compile would look the names up in
    the module itself."""
    scope = {k: v for k, v in forward.__globals__.items() if k != "__name__"} | functions
    return _made_of(forward, scope, forward.__closure__)


def _made_of(forward, scope, closure):
    made = types.FunctionType(forward.__code__, scope, forward.__name__, forward.__defaults__, closure)
    made.__kwdefaults__, made.__doc__, made.__module__ = forward.__kwdefaults__, forward.__doc__, forward.__module__
    made.__annotations__, made.__qualname__ = forward.__annotations__, forward.__qualname__
    return made


def cache_name(forward: Callable) -> str:
    """What transformers calls keys and values that are there already: another name from 5.24 on."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def inside(forward: Callable) -> Callable:
    """The forward in its decorators (transformers' hooks of accelerate, from 5.24 on its arguments' old names)."""
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    return forward


def decorated(forward: Callable, ours: Callable) -> Callable:
    """`ours` in the decorators that `forward` is in."""
    if not hasattr(forward, "__wrapped__"):
        return ours
    within, cells = decorated(forward.__wrapped__, ours), forward.__closure__
    closure = tuple(types.CellType(within) if cell.cell_contents is forward.__wrapped__ else cell for cell in cells)
    made = _made_of(forward, forward.__globals__, closure)
    made.__wrapped__ = within
    return made
