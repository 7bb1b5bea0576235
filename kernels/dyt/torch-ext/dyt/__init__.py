"""Dynamic tanh, tanh(alpha x) gamma + beta: ops with fakes and autograd, the layer in `layers`."""

from . import _package, layers
from ._package import ops
from ._package import like as _like


def _setup(ctx, inputs, output):
    x, alpha, gamma, beta = inputs
    ctx.has_beta = beta is not None
    ctx.save_for_backward(x, alpha, gamma)


def _backward(ctx, dy):
    *gradients, dbeta = ops.dyt_bwd(dy, *ctx.saved_tensors)
    return *gradients, dbeta if ctx.has_beta else None


_package.register(
    {
        "dyt": lambda x, alpha, gamma, beta: _like(x),
        "dyt_bwd": lambda dy, x, alpha, gamma: (_like(x), _like(alpha), _like(gamma), _like(gamma)),
    },
    {"dyt": (_backward, _setup)},
)


def dyt(x, alpha, gamma, beta=None):
    """x [..., cols], alpha [1], gamma and beta [cols]; all of alpha, gamma and beta in one type, x's or another."""
    return ops.dyt(x, alpha, gamma, beta)


__all__ = ["dyt", "layers"]
