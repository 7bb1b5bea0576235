// Deformable attention in float64 by plain loops, forward and backward, on the CPU: what the tests compare with.
#pragma once

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "kernels/common/testing/testing.h"

namespace deformable_test {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Sizes = std::vector<std::array<int64_t, 2>>;  // height, width of each level
using Points = std::vector<int64_t>;

struct Pyramid {
  Sizes sizes;
  Points points;  // of each level
  int64_t rows() const {
    int64_t sum = 0;
    for (const auto& [height, width] : sizes) sum += height * width;
    return sum;
  }
  int64_t samples() const {
    int64_t sum = 0;
    for (const int64_t n : points) sum += n;
    return sum;
  }
  // [levels, 2] and [levels], as the ops take them.
  Tensor shapes(at::ScalarType type = at::kLong) const {
    std::vector<int64_t> flat;
    for (const auto& [height, width] : sizes) flat.insert(flat.end(), {height, width});
    return at::tensor(flat, at::kLong).view({int64_t(sizes.size()), 2}).to(type);
  }
  Tensor starts(at::ScalarType type = at::kLong) const {
    std::vector<int64_t> flat = {0};
    for (const auto& [height, width] : sizes) flat.push_back(flat.back() + height * width);
    flat.pop_back();
    return at::tensor(flat, at::kLong).to(type);
  }
};

// value [batch, rows, heads, channels], locations [batch, queries, heads, samples, 2], weights [batch, queries, heads,
// samples], dy [batch, queries, heads * channels] -> y and the gradients of the three.
// sizes: every term with its absolute value, so that what is summed up can be told from what cancels.
inline Tensors oracle(const Pyramid& pyramid, const Tensors& in, const Tensor& dy, bool sizes = false) {
  const auto wide = [&](const Tensor& t) { return t.detach().cpu().to(at::kDouble).contiguous(); };
  Tensor value = wide(in[0]), weights = wide(in[2]), g = wide(dy);
  const Tensor locations = wide(in[1]);
  if (sizes) value = value.abs(), weights = weights.abs(), g = g.abs();
  const int64_t batch = value.size(0), rows = value.size(1), heads = value.size(2), channels = value.size(3);
  const int64_t queries = weights.size(1), samples = pyramid.samples();
  Tensor y = at::zeros_like(g), dvalue = at::zeros_like(value), dlocations = at::zeros_like(locations),
         dweights = at::zeros_like(weights);
  const double minus = sizes ? 1 : -1;
  const auto data = [](const Tensor& t) { return static_cast<double*>(t.data_ptr()); };
  for (int64_t row = 0; row < batch * queries * heads; ++row) {
    const int64_t n = row / heads / queries, m = row % heads;
    const double* dout = data(g) + row * channels;
    double* out = data(y) + row * channels;
    int64_t sample = row * samples, start = 0;
    for (size_t l = 0; l < pyramid.sizes.size(); ++l) {
      const auto [height, width] = pyramid.sizes[l];
      for (int64_t p = 0; p < pyramid.points[l]; ++p, ++sample) {
        const double px = data(locations)[2 * sample] * double(width) - 0.5;
        const double py = data(locations)[2 * sample + 1] * double(height) - 0.5;
        if (!(px > -1 && px < double(width) && py > -1 && py < double(height))) continue;
        const double x0 = std::floor(px), y0 = std::floor(py), fx = px - x0, fy = py - y0;
        const double a = data(weights)[sample];
        double s[4] = {};
        for (int k = 0; k < 4; ++k) {
          const auto x = int64_t(x0) + k % 2, z = int64_t(y0) + k / 2;
          if (x < 0 || x >= width || z < 0 || z >= height) continue;
          const double w = (k / 2 ? fy : 1 - fy) * (k % 2 ? fx : 1 - fx);
          const int64_t at = ((n * rows + start + z * width + x) * heads + m) * channels;
          for (int64_t c = 0; c < channels; ++c) {
            out[c] += a * w * data(value)[at + c];
            s[k] += dout[c] * data(value)[at + c];
            data(dvalue)[at + c] += a * w * dout[c];
          }
          data(dweights)[sample] += w * s[k];
        }
        data(dlocations)[2 * sample] =
            double(width) * a * ((1 - fy) * (s[1] + minus * s[0]) + fy * (s[3] + minus * s[2]));
        data(dlocations)[2 * sample + 1] =
            double(height) * a * ((1 - fx) * (s[2] + minus * s[0]) + fx * (s[3] + minus * s[1]));
      }
      start += height * width;
    }
  }
  return {y, dvalue, dlocations, dweights};
}

}  // namespace deformable_test
