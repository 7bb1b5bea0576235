// GroupNorm on a GPU: a group of channels of one sample is normalized with statistics of its own.
//
//   n = (x - mean) rstd,  y = n w + b                     w and b of the element's channel, mean and rstd of its group
//   g = dy w;  dx = (g - mean(g) - n mean(g n)) rstd,  dw = sum dy n,  db = sum dy over a channel of all samples
//
// Casting: x and dy are read and y, dx, dw, db rounded once, all else is fp32.
#pragma once
#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/gpu/launch.h"

namespace norms::cuda {

using kernels::DType;
using kernels::Stream;

struct GroupShape {
  DType dtype, weight_dtype;
  int64_t samples, groups, channels;  // channels: of a group
  int64_t positions;
  bool
      channels_last;  // memory is [samples, positions, groups * channels], else [samples, groups * channels, positions]

  HOTSWAP_HOST_DEVICE int64_t all_channels() const { return groups * channels; }
  HOTSWAP_HOST_DEVICE int64_t rows() const { return samples * groups; }
};

struct GroupNormForward {
  GroupShape shape;
  void* y;
  const void *x, *weight, *bias;  // weight, bias: [channels of all groups] or null
  float *mean, *rstd;             // [samples, groups] or null
  float eps;
};

struct GroupNormBackward {
  GroupShape shape;
  void* dx;
  float* partial;  // [samples * parts, 2, channels of all groups], for dweight and dbias
  const void *dy, *x, *weight;
  const float *mean, *rstd;
};

// Parts of a group, each with sums of its own; 0: a group does not fit on the chip, or not at whole vectors.
int64_t group_norm_parts(const GroupShape& s, bool aligned);

void group_norm_forward(const GroupNormForward& a, Stream stream);
void group_norm_backward(const GroupNormBackward& a, int64_t parts, void* dweight, void* dbias, Stream stream);

}  // namespace norms::cuda
