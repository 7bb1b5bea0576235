"""Activations that are modules: transformers' own classes, and torch's."""

from torch import nn

from hotswap.core.agree import agreement, first, numbers, settings, stock_forward
from hotswap.core.matcher import Matcher, of_package
from hotswap.core.replacement import class_of

ACTIVATIONS = {
    "SiLU": "silu", "GeLU": "gelu", "GeluTanh": "gelu_tanh", "QuickGELU": "gelu_quick", "ReLUSquared": "relu_squared"
}  # fmt: skip


class Activation(Matcher):
    options = {"activation": True}

    def match(self, module):
        in_torch = class_of(module) in (nn.SiLU, nn.GELU) and not getattr(module, "inplace", False)
        if not in_torch and class_of(module).__module__ != "transformers.activations":
            return []
        if next(module.children(), None) is not None or next(module.parameters(), None) is not None:
            return []

        def candidates():
            return [of_package("activation", layer, "activation", (op, f"{op}_bwd")) for layer, op in ACTIVATIONS.items()]

        def agree(candidate):
            stock, ours = stock_forward(module).__get__(module), candidate.forward.__get__(module)
            # the wide ones show a limit (gelu_10)
            return agreement(stock, ours, [((5 * numbers(3, 40),), 1e-6), ((1e4 * numbers(3, 40),), 1e-6)])

        return first(settings(module), candidates, agree, stock_forward(module))
