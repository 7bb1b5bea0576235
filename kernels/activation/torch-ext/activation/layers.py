from torch import nn

from ._ops import ops


class SiLU(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return ops.silu(input)


class GeLU(nn.Module):
    """By the normal integral. A GELUActivation made with use_gelu_python computes the same."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return ops.gelu(input)


class GeluTanh(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return ops.gelu_tanh(input)


class NewGELU(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return ops.gelu_new(input)


class FastGELU(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return ops.gelu_fast(input)


class QuickGELU(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return ops.gelu_quick(input)


class SiluAndMul(nn.Module):
    """silu(gate) * up, x = [gate | up] along the last dimension."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x):
        return ops.silu_and_mul(x)


class GeluAndMul(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, x):
        return ops.gelu_and_mul(x)


class GeluTanhAndMul(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, x):
        return ops.gelu_tanh_and_mul(x)


Silu = SiLU
Gelu = GeLU
