"""What may stand in for a module's own forward, and which class the module is asked for."""

import sys
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


def class_of(module: nn.Module) -> type:
    """Its class; where FSDP2 has put one of its own before it, the one behind."""
    bases = type(module).__bases__
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return bases[1] if fsdp is not None and bases[0] is fsdp.FSDPModule else type(module)
