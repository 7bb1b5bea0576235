import torch

from . import _package
from ._package import ops


class MultiScaleDeformableAttention(_package.Layer):
    def forward(
        self,
        value,
        value_spatial_shapes,
        value_spatial_shapes_list,
        level_start_index,
        sampling_locations,
        attention_weights,
        im2col_step,
    ):
        return ops.deformable_attention(
            value, value_spatial_shapes, level_start_index, sampling_locations, attention_weights
        )


def pyramid(spatial_shapes):
    """Sizes [levels, 2] and first rows [levels] of a list of (height, width), or of a tensor of them."""
    if not isinstance(spatial_shapes, torch.Tensor):
        spatial_shapes = torch.tensor([tuple(shape) for shape in spatial_shapes], dtype=torch.int64, device="cpu")
    rows = spatial_shapes.prod(1)
    return spatial_shapes, rows.cumsum(0) - rows
