import torch
from torch import nn

from ._ops import ops


class Linear(nn.Module):
    weight: torch.Tensor
    bias: torch.Tensor

    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return ops.linear(input, self.weight, self.bias)


LigerLinear = Linear

__all__ = ["LigerLinear", "Linear"]
