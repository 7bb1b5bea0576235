"""What may stand in for a module's own forward, and which class the module is asked for, and a forward that sees
other functions."""

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


def class_of(module: nn.Module) -> type:
    """Its class; where FSDP2 has put one of its own before it, the one behind."""
    bases = type(module).__bases__
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return bases[1] if fsdp is not None and bases[0] is fsdp.FSDPModule else type(module)


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
