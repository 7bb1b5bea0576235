#include "hotswap/layers/deformable.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/softmax.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace stock {

Tensor deformable_attention(const Tensor& value, const Tensor& spatial_shapes, const Tensor& level_start_index,
                            const Tensor& sampling_locations, const Tensor& attention_weights) {
  const int64_t batch = value.size(0), heads = value.size(2), channels = value.size(3);
  const int64_t queries = sampling_locations.size(1), levels = sampling_locations.size(3);
  const int64_t points = sampling_locations.size(4);
  const Tensor shapes = spatial_shapes.cpu(), starts = level_start_index.cpu();
  const auto wide = at::promoteTypes(value.scalar_type(), sampling_locations.scalar_type());
  const Tensor grids = 2 * sampling_locations.to(wide) - 1;
  Tensor sum;  // [batch * heads, channels, queries]
  for (int64_t level = 0; level < levels; ++level) {
    const int64_t height = shapes[level][0].item<int64_t>(), width = shapes[level][1].item<int64_t>();
    const Tensor image = value.narrow(1, starts[level].item<int64_t>(), height * width)
                             .to(wide)
                             .permute({0, 2, 3, 1})
                             .reshape({batch * heads, channels, height, width});
    const Tensor grid = grids.select(3, level).transpose(1, 2).reshape({batch * heads, queries, points, 2});
    const Tensor weights =
        attention_weights.select(3, level).transpose(1, 2).reshape({batch * heads, 1, queries, points});
    // [batch * heads, channels, queries, points]
    const Tensor taken = at::grid_sampler(image, grid, /*bilinear*/ 0, /*zeros*/ 0, /*align_corners=*/false);
    const Tensor of_level = (taken * weights).sum(-1);
    sum = sum.defined() ? sum + of_level : of_level;
  }
  return sum.view({batch, heads * channels, queries}).transpose(1, 2).contiguous().to(value.scalar_type());
}

}  // namespace stock

DeformableAttention::DeformableAttention(const DeformableAttentionOptions& o)
    : sampling_offsets(o.dim, o.heads * o.levels * o.points * 2, true),
      attention_weights(o.dim, o.heads * o.levels * o.points, true),
      value_proj(o.dim, o.dim, true),
      output_proj(o.dim, o.dim, true),
      options_(o) {
  if (o.heads < 1 || o.dim % o.heads != 0 || o.levels < 1 || o.points < 1) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "deformable attention of heads that divide dim, and at least one level and point",
                 .got = cat("dim ", o.dim, ", heads ", o.heads, ", levels ", o.levels, ", points ", o.points),
                 .next = "correct the options"});
  }
  own("sampling_offsets", sampling_offsets);
  own("attention_weights", attention_weights);
  own("value_proj", value_proj);
  own("output_proj", output_proj);
}

Tensor DeformableAttention::forward(const DeformableAttentionInput& in) const {
  const auto [dim, heads, levels, points] = options_;
  const Tensor hidden = in.position.defined() ? in.hidden + in.position : in.hidden;
  const int64_t batch = hidden.size(0), queries = hidden.size(1), rows = in.encoder_hidden.size(1);
  Tensor value = value_proj.forward(in.encoder_hidden);  // [batch, rows, dim]
  if (in.attention_mask.defined()) value = value.masked_fill(in.attention_mask.logical_not().unsqueeze(-1), 0);
  const Tensor offsets = sampling_offsets.forward(hidden).view({batch, queries, heads, levels, points, 2});
  const Tensor weights = at::softmax(attention_weights.forward(hidden).view({batch, queries, heads, -1}), -1)
                             .view({batch, queries, heads, levels, points});
  const Tensor reference = in.reference_points.unsqueeze(2).unsqueeze(4);  // [batch, queries, 1, levels, 1, 2 or 4]
  const Tensor centre = reference.narrow(-1, 0, 2);
  Tensor locations;  // [batch, queries, heads, levels, points, 2]
  if (reference.size(-1) == 2) {
    locations = centre + offsets / at::flip(in.spatial_shapes, {1}).view({1, 1, 1, levels, 1, 2});
  } else if (reference.size(-1) == 4) {
    locations = centre + offsets / points * reference.narrow(-1, 2, 2) * 0.5;
  } else {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "reference_points of 2 values (x, y) or 4 (x, y, width, height)",
                 .got = cat(reference.size(-1), " numbers"),
                 .next = "pass one of these forms"});
  }
  return output_proj.forward(attend_(value.view({batch, rows, heads, dim / heads}), in.spatial_shapes,
                                     in.level_start_index, locations, weights));
}

}  // namespace hotswap
