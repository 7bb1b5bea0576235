"""The causal convolution: fakes, gradients, and the functions of the package causal_conv1d."""

import torch

from ._package import ops
from ._package import like

_ACTIVATIONS = {None: "none", "silu": "silu", "swish": "silu"}


def in_layout(x):
    """A new tensor in the shape of x [batch, channels, length] and laid out as it: channels beside each other, or steps. No
    view: autograd lets nobody write to one in place."""
    batch, channels, length = x.shape
    if channels > 1 and length > 1 and x.stride(1) < x.stride(2):
        return x.new_empty_strided(x.shape, (length * channels, 1, channels))
    return x.new_empty(batch, channels, length)


def gradient_like(x, given):
    """Of what may be absent."""
    return x.new_empty(0, dtype=torch.float32) if given is None else like(given)


def given_only(gradients, inputs):
    return (g if t is not None else None for g, t in zip(gradients, inputs))


def _gradients(dy, x, weight, bias, initial_state, seq_idx, activation):
    return in_layout(x), like(weight), gradient_like(x, bias), gradient_like(x, initial_state)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.activation = inputs[5]


def _backward(ctx, dy):
    inputs = ctx.saved_tensors
    return *given_only(ops.causal_conv1d_bwd(dy, *inputs, ctx.activation), inputs), None, None


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, *tensors):
        return y.view_as(y)

    @staticmethod
    def backward(ctx, dy):
        raise RuntimeError(
            "expected the gradient of a step of generation; it has none, its state is moved on in place; train with "
            "causal_conv1d_fn and the scans over all tokens"
        )


def wants_gradient(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def without_gradient(y, *tensors):
    """y of a step; its backward is an error that says so."""
    return _Step.apply(y, *tensors) if wants_gradient(*tensors) and not torch.compiler.is_compiling() else y


FAKES = {
    "causal_conv1d": lambda x, *_: in_layout(x),
    "causal_conv1d_bwd": _gradients,
    "causal_conv1d_update": lambda x, *_: like(x),
}
GRADIENTS = {"causal_conv1d": (_backward, _setup)}


def _activation(name):
    if name not in _ACTIVATIONS:
        raise ValueError(f'expected activation None, "silu" or "swish"; got {name!r}; apply another one to the result of None')
    return _ACTIVATIONS[name]


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
):
    """x [B, D, L], weight [D, W], bias [D], seq_idx int32 [B, L], initial_states [B, D, W - 1]: y as x; with
    return_final_states also the last W - 1 columns of initial_states and x, in final_states_out where that is given."""
    y = ops.causal_conv1d(x, weight, bias, initial_states, seq_idx, _activation(activation))
    if not return_final_states:
        return y
    columns, length = weight.shape[-1] - 1, x.shape[2]
    before = x.new_zeros((*x.shape[:2], columns)) if initial_states is None else initial_states.to(x.dtype)
    final = torch.cat([before[:, :, min(length, columns) :], x[:, :, max(length - columns, 0) :]], -1)
    return y, final if final_states_out is None else final_states_out.copy_(final)


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None):
    """x [B, D] or [B, D, S] behind conv_state [rows, D, W - 1 or more], which moves on in place. With cache_seqlens int32 [B]
    the state is a ring; conv_state_indices int32 [B] say which row is whose, a negative one that there is none."""
    rest = cache_seqlens, conv_state_indices, _activation(activation)
    return without_gradient(ops.causal_conv1d_update(x, conv_state, weight, bias, *rest), x, weight, bias)
