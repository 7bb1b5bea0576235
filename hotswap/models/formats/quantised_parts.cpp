#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/parallel.h"
#include "hotswap/models/formats/quantised_impl.h"

namespace hotswap::quantised {

void Parts::refuse(const std::string& expected, const std::string& got) const {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(expected, " for ", module_, " in ", stored_.where()),
               .got = got,
               .next = "fetch the checkpoint again, or take another quantisation of the model"});
}

void Parts::check(bool fits, const std::string& part, const std::string& expected) const {
  if (fits) return;
  refuse(cat(part, " as ", expected), cat(dtype(part), " [", join(shape(part)), "]"));
}

Tensor Parts::of(const std::string& part, at::ScalarType dtype) const {
  check(this->dtype(part) == dtype, part, at::toString(dtype));
  return (*this)[part];
}

Shape shape_of_weight(const Parts& parts) { return parts.shape("weight"); }

Shape shape_of_pairs(const Parts& parts, const std::string& part) {
  Shape shape = parts.shape(part);
  parts.check(shape.size() == 2, part, "[out, in / 2]");
  shape[1] *= 2;
  return shape;
}

int64_t parts_of(int64_t size, int64_t part) { return (size + part - 1) / part; }

Tensor unpacked_bits(const Tensor& words, int64_t bits, int64_t count) {
  const Tensor from = words.contiguous();
  const int64_t rows = from.size(0), row_words = from.size(1);
  Tensor codes = at::empty({rows, count}, at::TensorOptions().dtype(at::kByte));
  const auto* in = reinterpret_cast<const uint32_t*>(from.const_data_ptr<int32_t>());
  auto* out = codes.mutable_data_ptr<uint8_t>();
  parallel_for(0, rows, 1 + 16384 / (count + 1), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t bit = i * bits, word = bit / 32;
        const uint32_t* at = in + row * row_words + word;
        const uint64_t two = at[0] | uint64_t{word + 1 < row_words ? at[1] : 0} << 32;
        out[row * count + i] = static_cast<uint8_t>(two >> (bit % 32) & ((1U << bits) - 1));
      }
    }
  });
  return codes;
}

Weight grouped(const Tensor& codes, const Tensor& zeros, const Tensor& scales, int64_t group) {
  Weight weight{.scales = scales.contiguous(), .group = group, .logical_shape = codes.sizes().vec()};
  if (codes.size(1) % 2 == 0 && codes.max().item<int64_t>() < 16) {
    const Tensor pairs = codes.view({codes.size(0), -1, 2});
    weight.format = WeightFormat::kInt4;
    weight.data = at::bitwise_or(pairs.select(2, 0), at::bitwise_left_shift(pairs.select(2, 1), 4)).contiguous();
    weight.zeros = zeros.contiguous();
  } else {  // unsigned codes as signed ones: both 128 lower
    weight.format = WeightFormat::kInt8;
    weight.data = (codes.to(at::kShort) - 128).to(at::kChar).contiguous();
    weight.zeros = (zeros.to(at::kShort) - 128).contiguous();
  }
  return weight;
}

Weight scaled(const Parts& parts, WeightFormat format, const Tensor& data, const std::string& scales,
              const Shape& block) {
  if (data.dim() != 2) parts.refuse("a matrix as weight", cat("[", join(data.sizes()), "]"));
  Weight weight{.format = format, .data = data, .logical_shape = data.sizes().vec()};
  const Tensor shared = parts[scales];
  const int64_t out = data.size(0), in = data.size(1);
  const auto has = [&](const Shape& shape) { return shared.sizes() == at::IntArrayRef(shape); };
  if (shared.numel() == 1) {
    weight.scales = shared.view({1});
  } else if (has({out}) || has({out, 1})) {
    weight.scales = shared.view({out, 1});
  } else if (block.size() == 2 && block[0] > 0 && block[1] > 0 &&
             has({parts_of(out, block[0]), parts_of(in, block[1])})) {
    weight.scales = shared, weight.group_rows = block[0], weight.group = block[1];
  } else {
    std::string expected = cat("[1] or [", out, ", 1]");
    if (block.size() == 2) expected += cat(", or one a block of [", join(block), "]");
    parts.refuse(cat(scales, " ", expected), cat("[", join(shared.sizes()), "]"));
  }
  return weight;
}

Tensor e2m1_table() {
  return at::tensor({0.F, .5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F, -0.F, -.5F, -1.F, -1.5F, -2.F, -3.F, -4.F, -6.F});
}

}  // namespace hotswap::quantised
