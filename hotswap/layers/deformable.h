// Multi-scale deformable attention: a query looks at a few places in every level of a feature pyramid.
#pragma once

#include "hotswap/layers/linear.h"

namespace hotswap {

// deformable_attention/1. value: [batch, rows, heads, channels], the pixels of all levels one behind the other;
// spatial_shapes: [levels, 2] int64, (height, width); level_start_index: [levels] int64, a level's first row
// sampling_locations: [batch, queries, heads, levels, points, 2], (x, y) from 0 to 1 over the level
// attention_weights: [batch, queries, heads, levels, points] -> [batch, queries, heads * channels]
using DeformableForward = Tensor(const Tensor& value, const Tensor& spatial_shapes, const Tensor& level_start_index,
                                 const Tensor& sampling_locations, const Tensor& attention_weights);

namespace stock {
// By grid_sample, level by level; waits for the sizes where they are on a GPU.
Tensor deformable_attention(const Tensor& value, const Tensor& spatial_shapes, const Tensor& level_start_index,
                            const Tensor& sampling_locations, const Tensor& attention_weights);
}  // namespace stock

struct DeformableAttentionOptions {
  int64_t dim, heads, levels, points;
};

struct DeformableAttentionInput {
  Tensor hidden;            // [batch, queries, dim]
  Tensor encoder_hidden;    // [batch, rows, dim]
  Tensor attention_mask;    // [batch, rows] bool, false: padding; or undefined
  Tensor position;          // [batch, queries, dim], added to hidden; or undefined
  Tensor reference_points;  // [batch, queries, levels, 2 (x, y) or 4 (and width, height)]
  Tensor spatial_shapes, level_start_index;
};

// As Deformable DETR has it, names of the parameters too.
class DeformableAttention : public Module {
 public:
  explicit DeformableAttention(const DeformableAttentionOptions& options);
  Tensor forward(const DeformableAttentionInput& in) const;  // [batch, queries, dim]
  Linear sampling_offsets, attention_weights, value_proj, output_proj;

 private:
  DeformableAttentionOptions options_;
  Slot<DeformableForward> attend_{this, "MultiScaleDeformableAttention", "deformable_attention/1",
                                  stock::deformable_attention};
};

}  // namespace hotswap
