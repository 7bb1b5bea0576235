"""State-space layers and the causal convolution before them: ops with fakes and autograd."""

import torch

from . import _package, layers
from ._ops import ops
from ._package import like as _like

causal_conv1d = ops.causal_conv1d
causal_conv1d_update = ops.causal_conv1d_update


def _in_layout(x):
    """A new tensor in the shape of x [batch, channels, length] and laid out as it: channels beside each other, or steps."""
    batch, channels, length = x.shape
    if channels > 1 and length > 1 and x.stride(1) < x.stride(2):
        return x.new_empty(batch, length, channels).transpose(1, 2)
    return x.new_empty(batch, channels, length)


def _or_none(x, given):
    return x.new_empty(0, dtype=torch.float32) if given is None else _like(given)


def _conv_gradients(dy, x, weight, bias, initial_state, seq_idx, activation):
    return _in_layout(x), _like(weight), _or_none(x, bias), _or_none(x, initial_state)


def _conv_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.activation = inputs[5]


def _conv_backward(ctx, dy):
    _, _, bias, initial_state, _ = ctx.saved_tensors
    dx, dweight, dbias, dinitial = ops.causal_conv1d_bwd(dy, *ctx.saved_tensors, ctx.activation)
    return dx, dweight, dbias if bias is not None else None, dinitial if initial_state is not None else None, None, None


_package.register(
    {
        "causal_conv1d": lambda x, *_: _in_layout(x),
        "causal_conv1d_bwd": _conv_gradients,
        "causal_conv1d_update": lambda x, *_: _like(x),
    },
    {"causal_conv1d": (_conv_backward, _conv_setup)},
)

__all__ = ["causal_conv1d", "causal_conv1d_update", "layers"]
