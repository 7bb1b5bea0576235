// bitsandbytes: 4 bits by a table of 16 (NF4, FP4) in blocks over the flattened weight, and LLM.int8().
#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_right_shift.h>

#include "hotswap/base/error.h"
#include "hotswap/models/formats/quantised_impl.h"

namespace hotswap::quantised {
namespace {

constexpr const char *kNf4 = "weight.quant_state.bitsandbytes__nf4", *kFp4 = "weight.quant_state.bitsandbytes__fp4";

// The description of a weight, as JSON in a tensor of bytes.
Json state_of(const Parts& parts) {
  const Tensor bytes = parts.of(parts.has(kNf4) ? kNf4 : kFp4, at::kByte).contiguous();
  return Json::parse({reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()), size_t(bytes.numel())},
                     cat("the quant_state of ", parts.module()));
}

Shape shape_of_4bit(const Parts& parts) {
  const auto shape = state_of(parts).at<std::vector<int64_t>>("shape");
  if (shape.size() == 2 && shape[0] > 0 && shape[1] > 0 && shape[0] < INT32_MAX && shape[1] < INT32_MAX) return shape;
  parts.refuse("shape [out, in] in quant_state", cat("[", join(shape), "]"));
}

// A scale a block; with double quantisation themselves codes of a table of 256, in blocks with a scale each.
Tensor scales_of(const Parts& parts, const Json& state, int64_t blocks) {
  parts.check(parts.shape("weight.absmax") == Shape({blocks}), "weight.absmax", cat("[", blocks, "]"));
  if (!parts.has("weight.nested_absmax")) return parts.of("weight.absmax", at::kFloat);
  const auto nested = state.at<int64_t>("nested_blocksize");
  const Tensor table = parts.of("weight.nested_quant_map", at::kFloat),
               outer = parts.of("weight.nested_absmax", at::kFloat);
  parts.check(table.numel() == 256, "weight.nested_quant_map", "[256]");
  parts.check(nested > 0 && outer.numel() == parts_of(blocks, nested), "weight.nested_absmax",
              cat("one for ", nested, " blocks"));
  const Tensor codes = parts.of("weight.absmax", at::kByte).to(at::kLong);
  const Tensor repeated = outer.repeat_interleave(nested).narrow(0, 0, blocks);
  return table.index_select(0, codes) * repeated + state.at<double>("nested_offset");
}

// A row of all elements: blocks may cross the matrix's rows.
Weight four_bits(const Parts& parts) {
  const Json state = state_of(parts);
  const Shape shape = shape_of_4bit(parts);
  const int64_t numel = shape[0] * shape[1];
  const auto block = state.at<int64_t>("blocksize");
  if (block < 2 || block > 4096) parts.refuse("a blocksize from 2 to 4096 in quant_state", cat(block));
  const Tensor stored = parts["weight"].contiguous().view(at::kByte).view({-1});  // of any dtype
  parts.check(stored.numel() == parts_of(numel, 2), "weight", cat(parts_of(numel, 2), " bytes"));
  const Tensor table = parts.of("weight.quant_map", at::kFloat);
  parts.check(table.numel() == 16, "weight.quant_map", "[16]");
  const Tensor low_first = at::bitwise_or(at::bitwise_right_shift(stored, 4), at::bitwise_left_shift(stored, 4));
  return {.format = WeightFormat::kTable16,
          .data = low_first.view({1, -1}),
          .scales = scales_of(parts, state, parts_of(numel, block)).view({1, -1}),
          .table = table,
          .group = block,
          .logical_shape = {1, numel + numel % 2}};
}

Weight eight_bits(const Parts& parts) {
  const Tensor data = parts.of("weight", at::kChar), rows = parts.of("SCB", at::kFloat);
  parts.check(data.dim() == 2 && rows.sizes() == at::IntArrayRef({data.size(0)}), "SCB", "one float32 a row");
  if (parts.has("weight_format") && parts["weight_format"].item<int64_t>() != 0)
    parts.refuse("weight_format 0, row by row", cat(parts["weight_format"].item<int64_t>()));
  return {.format = WeightFormat::kInt8,
          .data = data,
          .scales = rows.view({-1, 1}) / 127,
          .logical_shape = data.sizes().vec()};
}

}  // namespace

const std::vector<Layout>& bitsandbytes_layouts() {
  static const std::vector<std::string> nested = {"weight.nested_absmax", "weight.nested_quant_map"};
  static const std::vector<Layout> layouts = {
      {"bitsandbytes", "NF4", {"weight", "weight.absmax", "weight.quant_map", kNf4}, nested, shape_of_4bit, four_bits},
      {"bitsandbytes", "FP4", {"weight", "weight.absmax", "weight.quant_map", kFp4}, nested, shape_of_4bit, four_bits},
      {"bitsandbytes", "LLM.int8()", {"weight", "SCB"}, {"weight_format"}, shape_of_weight, eight_bits}};
  return layouts;
}

}  // namespace hotswap::quantised
