"""Liger's GroupNorm and DyT (dynamic tanh): what normalizes channels, and what stands where a norm would."""

import torch
from torch import nn

from hotswap.core.packages import load

_dyt, _norm = load("dyt"), load("norm")


def liger_group_norm(X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps):
    """X [batch, num_channels, ...]: our kernel on a GPU where a group fits on the chip, else torch's own."""
    if X.dim() < 3 or X.shape[1] != num_channels:
        raise ValueError(f"expected [batch, {num_channels}, ...] of three dimensions or more; got {list(X.shape)}; reshape it")
    return _norm.group_norm(X, affine_scaling_weight, affine_shifting_bias, num_groups, eps)


class LigerGroupNorm(nn.Module):
    def __init__(self, num_channels, num_groups, eps=1e-6, bias=False, init_fn="ones"):
        super().__init__()
        if init_fn not in ("ones", "zeros"):
            raise ValueError(f"expected init_fn ones or zeros; got {init_fn!r}; pass one of them")
        if num_channels % num_groups:
            raise ValueError(f"expected channels that {num_groups} groups divide; got {num_channels}; change one of them")
        self.num_channels, self.num_groups, self.eps = num_channels, num_groups, eps
        self.weight = nn.Parameter(getattr(torch, init_fn)(num_channels))
        self.bias = nn.Parameter(torch.randn(num_channels) if bias else torch.zeros(num_channels))

    def forward(self, hidden_states):
        return liger_group_norm(
            hidden_states, self.weight, self.bias, self.num_channels, self.num_groups, self.eps
        )

    def extra_repr(self):
        return f"num_channels={self.num_channels}, num_groups={self.num_groups}, eps={self.eps}"


def liger_dyt(x, alpha, gamma, beta):
    """tanh(alpha x) gamma + beta; alpha [1], gamma and beta [the last dimension], beta or None."""
    return _dyt.dyt(x, alpha, gamma, beta)


class LigerDyT(nn.Module):
    def __init__(self, hidden_size, beta=True, init_alpha=0.5):
        super().__init__()
        self.hidden_size, self.init_alpha = hidden_size, init_alpha
        self.alpha = nn.Parameter(torch.full((1,), float(init_alpha)))
        self.gamma = nn.Parameter(torch.ones(hidden_size))
        self.beta = nn.Parameter(torch.zeros(hidden_size)) if beta else None

    def forward(self, x):
        return liger_dyt(x, self.alpha, self.gamma, self.beta)

    def extra_repr(self):
        return f"{self.hidden_size}, init_alpha={self.init_alpha}, beta={self.beta is not None}"


__all__ = [name for name in dir() if name.lower().startswith("liger")]
