#include "hotswap/models/formats/mxfp4.h"

#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>

#include <array>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/layers/parallel.h"

namespace hotswap {
namespace {

using Shape = std::vector<int64_t>;
constexpr int64_t kBlock = 32, kBytes = kBlock / 2;

[[noreturn]] void refuse_blocks(const std::string& got) {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "MXFP4 blocks [experts, rows, groups, 16] and scales [experts, rows, groups], both uint8",
               .got = got,
               .next = "fetch the checkpoint again"});
}

Shape shape_of(const std::vector<Shape>& parts) {
  const Shape &blocks = parts[0], &scales = parts[1];
  if (blocks.size() != 4 || blocks[3] != kBytes || scales != Shape(blocks.begin(), blocks.end() - 1)) {
    refuse_blocks(cat("[", join(blocks), "] and [", join(scales), "]"));
  }
  return {blocks[0], blocks[2] * kBlock, blocks[1]};
}

// All the numbers of a byte: its lower half, its upper half.
std::array<std::array<float, 2>, 256> numbers_of_bytes() {
  constexpr float kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::array<std::array<float, 2>, 256> table;
  for (int byte = 0; byte < 256; ++byte) {
    for (int half = 0; half < 2; ++half) {
      const int bits = (byte >> (4 * half)) & 15;
      table[byte][half] = bits < 8 ? kNumbers[bits] : -kNumbers[bits - 8];
    }
  }
  return table;
}

// One group of columns of one expert: rows are read in turns, and lie one behind the other in each of its 32 columns.
template <typename T>
void decode_group(const uint8_t* blocks, const uint8_t* scales, int64_t rows, int64_t groups, T* out) {
  static const auto table = numbers_of_bytes();
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* block = blocks + row * groups * kBytes;
    const float scale = std::ldexp(1.0F, scales[row * groups] - 127);
    for (int64_t i = 0; i < kBytes; ++i) {
      const auto& pair = table[block[i]];
      out[2 * i * rows + row] = static_cast<T>(pair[0] * scale);
      out[(2 * i + 1) * rows + row] = static_cast<T>(pair[1] * scale);
    }
  }
}

template <typename T>
at::Tensor decode_as(const at::Tensor& blocks, const at::Tensor& scales, at::ScalarType dtype) {
  const int64_t experts = blocks.size(0), rows = blocks.size(1), groups = blocks.size(2);
  at::Tensor out = at::empty({experts, groups * kBlock, rows}, at::TensorOptions().dtype(dtype));
  const auto* from = blocks.const_data_ptr<uint8_t>();
  const auto* by = scales.const_data_ptr<uint8_t>();
  T* to = out.mutable_data_ptr<T>();
  parallel_for(0, experts * groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t expert = i / groups, group = i % groups;
      const int64_t first = expert * rows * groups + group;
      decode_group(from + first * kBytes, by + first, rows, groups, to + i * kBlock * rows);
    }
  });
  return out;
}

void check_parts(const std::vector<at::Tensor>& parts) {
  if (parts[0].scalar_type() != at::kByte || parts[1].scalar_type() != at::kByte) {
    refuse_blocks(cat(parts[0].scalar_type(), " and ", parts[1].scalar_type()));
  }
  shape_of({parts[0].sizes().vec(), parts[1].sizes().vec()});
}

at::Tensor decode(const std::vector<at::Tensor>& parts, at::ScalarType dtype) {
  check_parts(parts);
  const at::Tensor blocks = parts[0].contiguous(), scales = parts[1].contiguous();
  if (dtype == at::kFloat) return decode_as<float>(blocks, scales, dtype);
  if (dtype == at::kHalf) return decode_as<c10::Half>(blocks, scales, dtype);
  return decode_as<c10::BFloat16>(blocks, scales, at::kBFloat16).to(dtype);
}

// ggml's block: the scale, then 16 bytes whose low halves are the first 16 weights and whose high halves the others.
void to_ggml(const uint8_t* pairs, uint8_t scale, uint8_t* block) {
  *block++ = scale;
  const auto code = [&](int64_t i) { return pairs[i / 2] >> (i % 2 * 4) & 15; };
  for (int64_t i = 0; i < kBytes; ++i) block[i] = static_cast<uint8_t>(code(i) | code(i + kBytes) << 4);
}

// A scale of 255 is infinite here and is not in ggml's blocks: nullopt.
std::optional<Weight> packed_mxfp4(const std::vector<at::Tensor>& parts) {
  check_parts(parts);
  const at::Tensor blocks = parts[0].contiguous(), scales = parts[1].contiguous();
  if (scales.eq(255).any().item<bool>()) return std::nullopt;
  const int64_t experts = blocks.size(0), rows = blocks.size(1), groups = blocks.size(2), block = kBytes + 1;
  at::Tensor data = at::empty({experts, rows, groups * block}, blocks.options());
  const auto* from = blocks.const_data_ptr<uint8_t>();
  const auto* by = scales.const_data_ptr<uint8_t>();
  auto* to = data.mutable_data_ptr<uint8_t>();
  parallel_for(0, experts * rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * groups; i < end * groups; ++i) to_ggml(from + i * kBytes, by[i], to + i * block);
  });
  return Weight{.format = WeightFormat::kMxfp4,
                .data = data,
                .logical_shape = {experts, rows, groups * kBlock},
                .transposed = true};
}

}  // namespace

TensorRule::Decode mxfp4() { return {.shape = shape_of, .tensor = decode, .packed = packed_mxfp4}; }

}  // namespace hotswap
