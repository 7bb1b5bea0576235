import torch

from . import _package
from ._ops import ops


class Linear(_package.Layer):
    weight: torch.Tensor
    bias: torch.Tensor

    def forward(self, input):
        return ops.linear(input, self.weight, self.bias)


LigerLinear = Linear

__all__ = ["LigerLinear", "Linear"]
