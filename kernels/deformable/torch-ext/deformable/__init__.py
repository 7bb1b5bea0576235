"""Multi-scale deformable attention: ops with fakes and autograd, the layer and the functions of models in `layers`."""

from . import _package, layers
from ._package import ops
from ._package import like as _like


def _result(value, spatial_shapes, level_start_index, sampling_locations, *rest):
    batch, _, heads, channels = value.shape
    return value.new_empty(batch, sampling_locations.shape[1], heads * channels)


def _gradients(dy, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *rest):
    return _like(value), _like(sampling_locations), _like(attention_weights)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.points = inputs[5:]


def _backward(op):
    backward_op = getattr(ops, f"{op}_bwd")

    def backward(ctx, dy):
        dvalue, dlocations, dweights = backward_op(dy, *ctx.saved_tensors, *ctx.points)
        return dvalue, None, None, dlocations, dweights, *(None for _ in ctx.points)

    return backward


_OPS = ("deformable_attention", "deformable_attention_points")
_package.register(
    dict.fromkeys(_OPS, _result)
    | dict.fromkeys((*(f"{op}_bwd" for op in _OPS), "deformable_attention_bwd_unordered"), _gradients),
    {op: (_backward(op), _setup) for op in _OPS},
)

deformable_attention = ops.deformable_attention
deformable_attention_points = ops.deformable_attention_points

__all__ = ["deformable_attention", "deformable_attention_points", "layers"]
