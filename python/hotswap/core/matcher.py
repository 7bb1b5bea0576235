"""The one form of what finds layers: a Matcher knows one kind of layer that packages have kernels for. matchers/registered.py lists
them."""

from torch import nn

from hotswap.core.packages import load
from hotswap.core.replacement import Replacement, class_of


class Matcher:
    options: dict = {}  # the switches of kernelize() that are about these layers: name -> is it on by default

    def match(self, module: nn.Module) -> list[Replacement]:
        """What of ours computes the same as the module's class; several exclude each other."""
        raise NotImplementedError

    def serves(self, module: nn.Module) -> str:
        """The layer that the module seems to be by its looks, whatever its class computes; "": none of this kind."""
        return ""

    def why_not(self, module: nn.Module) -> str:
        """Why a module that looks like such a layer has no match."""
        return f"{class_of(module).__name__} computes something else"

    def stand_in(self, module: nn.Module, layer_class: type) -> dict:
        """How a layer of a package that is not ours takes the position of this module: fields of its Replacement."""
        return dict(forward=layer_class.forward)


def of_package(option: str, layer: str, package: str, ops: tuple, **more) -> Replacement:
    """By a layer of a package of ours."""
    layer_class = getattr(load(package).layers, layer)
    return Replacement(option, layer, package, ops, layer_class.forward, layer_class, **more)
