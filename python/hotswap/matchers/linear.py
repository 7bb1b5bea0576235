"""Projections of a model by our product, on demand."""

from torch import nn

from hotswap.core.matcher import Matcher, of_package
from hotswap.core.plain import quantised_weight
from hotswap.core.replacement import class_of


class Linear(Matcher):
    options = {"linear": False}

    def match(self, module):
        if class_of(module) is not nn.Linear or quantised_weight(module):
            return []
        return [of_package("linear", "Linear", "linear", ("linear",))]

    def serves(self, module):
        return "Linear" if quantised_weight(module) else ""

    def why_not(self, module):
        return f"its weight is quantised ({quantised_weight(module)})"
