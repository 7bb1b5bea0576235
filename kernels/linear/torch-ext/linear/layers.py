import torch

from . import _package
from ._package import ops


class Linear(_package.Layer):
    weight: torch.Tensor
    bias: torch.Tensor

    def forward(self, input):
        return ops.linear(input, self.weight, self.bias)


LigerLinear = Linear

HOST_ALONE = ("PackedLinear",)  # layers of the C++ host that no layer of Python's is

__all__ = ["LigerLinear", "Linear"]
