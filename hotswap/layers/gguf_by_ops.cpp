#include "hotswap/layers/gguf_by_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/gguf_dequant.h"

namespace hotswap {
namespace {

using at::Tensor;

// Parts of blocks [rows, blocks, bytes], along the last dimension.
struct Blocks {
  Tensor bytes;

  Tensor part(int64_t at, int64_t count) const { return bytes.narrow(-1, at, count); }
  Tensor half(int64_t at) const { return part(at, 2).contiguous().view(at::kHalf).to(at::kFloat); }
  Tensor signed_bytes(int64_t at, int64_t count) const { return part(at, count).view(at::kChar).to(at::kFloat); }
};

Tensor low(const Tensor& bytes) { return at::bitwise_and(bytes, 15); }
Tensor high(const Tensor& bytes) { return at::bitwise_right_shift(bytes, 4); }
// bytes >> shift & mask for each shift from 0 on, in steps: a new dimension before the last.
Tensor fields(const Tensor& bytes, int64_t count, int64_t step, int64_t mask) {
  const Tensor shifts = at::arange(0, count * step, step, bytes.options()).view({count, 1});
  return at::bitwise_and(at::bitwise_right_shift(bytes.unsqueeze(-2), shifts), mask);
}
Tensor above(const Tensor& bits, const Tensor& low_bits) {  // bits in front of four
  return at::bitwise_or(at::bitwise_left_shift(bits, 4), low_bits);
}
Tensor less(const Tensor& codes, int64_t zero) { return codes.to(at::kFloat) - zero; }

// Of 32 weights: 16 bytes, the low nibbles are the first half.
Tensor nibbles(const Blocks& b, int64_t at) {
  const Tensor bytes = b.part(at, 16);
  return at::cat({low(bytes), high(bytes)}, -1);
}

Tensor q5_0(const Blocks& b) {
  const Tensor fifth = fields(b.part(2, 4), 8, 1, 1).transpose(-1, -2).flatten(-2);
  return b.half(0) * less(above(fifth, nibbles(b, 6)), 16);
}

// Of 256 weights in eight groups, with scales and minimums of six bits: codes [rows, blocks, 8, 32].
Tensor by_groups(const Blocks& b, const Tensor& codes) {
  const Tensor first = b.part(4, 4), second = b.part(8, 4), third = b.part(12, 4);
  const auto six = [](const Tensor& plain, const Tensor& four, const Tensor& two) {
    return at::cat({at::bitwise_and(plain, 63), above(at::bitwise_right_shift(two, 6), four)}, -1).to(at::kFloat);
  };
  const Tensor scale = b.half(0) * six(first, low(third), first),
               minimum = b.half(2) * six(second, high(third), second);
  return scale.unsqueeze(-1) * codes.to(at::kFloat) - minimum.unsqueeze(-1);
}

Tensor nibbles_of_groups(const Blocks& b, int64_t at) {
  const Tensor bytes = b.part(at, 128).unflatten(-1, {4, 32});
  return at::stack({low(bytes), high(bytes)}, -2).flatten(-3, -2);
}

Tensor q6_k(const Blocks& b) {
  const Tensor bytes = b.part(0, 128).unflatten(-1, {2, 2, 32});
  const Tensor four = at::cat({low(bytes), high(bytes)}, -2);                              // [.., 2, 4, 32]
  const Tensor two = fields(b.part(128, 64).unflatten(-1, {2, 32}), 4, 2, 3);              // the same
  const Tensor codes = less(above(two, four), 32).unflatten(-1, {2, 16}).flatten(-4, -2);  // [.., 16, 16]
  return (b.half(208) * b.signed_bytes(192, 16)).unsqueeze(-1) * codes;
}

Tensor weights(const Blocks& b, const std::string& type) {
  if (type == "Q8_0") return b.half(0) * b.signed_bytes(2, 32);
  if (type == "Q4_0") return b.half(0) * less(nibbles(b, 2), 8);
  if (type == "Q4_1") return b.half(0) * nibbles(b, 4).to(at::kFloat) + b.half(2);
  if (type == "Q5_0") return q5_0(b);
  if (type == "Q4_K") return by_groups(b, nibbles_of_groups(b, 16));
  if (type == "Q5_K") return by_groups(b, above(fields(b.part(16, 32), 8, 1, 1), nibbles_of_groups(b, 48)));
  if (type == "Q6_K") return q6_k(b);
  throw Error({.kind = ErrorKind::kInternal,
               .wanted = "blocks of Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q5_K or Q6_K",
               .got = type,
               .next = "use dequantise()"});
}

}  // namespace

Tensor dequantised_by_ops(const Tensor& blocks, const std::string& type, int64_t in) {
  const GgufType& found = *find_gguf_type(type);
  const Blocks b{blocks.contiguous().view({blocks.size(0), in / found.block, int64_t(found.block_size)})};
  return weights(b, type).reshape({blocks.size(0), in});
}

}  // namespace hotswap
