// GPTQ and AWQ: codes of a column's groups with a zero each. Both store the transposed matrix, in int32 words.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/models/formats/quantised_impl.h"

namespace hotswap::quantised {
namespace {

[[noreturn]] void unsupported_settings(const Json& settings, const std::string& expected, const std::string& got) {
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = expected,
               .got = cat(got, " in ", settings.where()),
               .next = "take another quantisation of the model"});
}

constexpr int64_t kWord = 32;  // bits

// ---- AWQ: qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out]

Shape shape_of_awq(const Parts& parts) {
  const Shape shape = parts.shape("qweight");
  parts.check(shape.size() == 2, "qweight", "[in, out / 8]");
  return {shape[1] * 8, shape[0]};
}

// The eight codes of a word are columns 0, 2, 4, 6, 1, 3, 5, 7.
Tensor in_awq_order(const Tensor& words) {
  const Tensor codes = unpacked_bits(words, 4, words.size(1) * 8).view({words.size(0), -1, 8});
  return codes.index_select(2, at::tensor({0, 4, 1, 5, 2, 6, 3, 7}, at::kLong)).view({words.size(0), -1});
}

Weight awq(const Parts& parts) {
  const Shape shape = shape_of_awq(parts);
  const int64_t out = shape[0], in = shape[1];
  const Tensor scales = parts["scales"], zeros = parts.of("qzeros", at::kInt);
  parts.check(scales.dim() == 2 && scales.size(1) == out && scales.size(0) > 0 && in % scales.size(0) == 0, "scales",
              cat("[groups of ", in, " rows, ", out, "]"));
  parts.check(zeros.sizes() == at::IntArrayRef({scales.size(0), out / 8}), "qzeros",
              cat("[", scales.size(0), ", ", out / 8, "]"));
  return grouped(in_awq_order(parts.of("qweight", at::kInt)).t().contiguous(), in_awq_order(zeros).t(), scales.t(),
                 in / scales.size(0));
}

// ---- GPTQ: qweight [in * bits / 32, out], qzeros [groups, out * bits / 32], scales [groups, out], g_idx [in]

int64_t bits_of(const Parts& parts) {
  const Shape words = parts.shape("qweight"), columns = parts.shape("g_idx");
  parts.check(words.size() == 2 && columns.size() == 1 && columns[0] > 0 && words[0] * kWord % columns[0] == 0,
              "qweight", "[in * bits / 32, out] for g_idx [in]");
  const int64_t bits = words[0] * kWord / columns[0];
  parts.check(bits == 2 || bits == 3 || bits == 4 || bits == 8, "qweight", "codes of 2, 3, 4 or 8 bits");
  return bits;
}

Shape shape_of_gptq(const Parts& parts) { return {parts.shape("qweight").at(1), parts.shape("g_idx").at(0)}; }

// Files of version 1 store a zero less one. Some of version 2 are labelled version 1: where a file is
// symmetric, each zero is the middle code, so that the stored codes decide.
bool stores_zeros_less_one(const Parts& parts, const Tensor& stored, int64_t bits) {
  const auto name =
      parts.settings().get<std::string>("checkpoint_format", parts.settings().get<std::string>("format", "gptq"));
  const bool named = name == "gptq";
  if (!parts.settings().get<bool>("sym", false)) return named;
  const int64_t middle = int64_t{1} << (bits - 1), least = stored.min().item<int64_t>();
  if (least != stored.max().item<int64_t>() || (least != middle && least != middle - 1)) return named;
  const bool less_one = least == middle - 1;
  if (less_one != named) {
    log_warning(parts.module(), " stores the zeros of GPTQ's version ", less_one ? 1 : 2, ", and ",
                parts.settings().where(), " has checkpoint_format ", name, ": read as version ", less_one ? 1 : 2);
  }
  return less_one;
}

Weight gptq(const Parts& parts) {
  const int64_t bits = bits_of(parts), out = parts.shape("qweight")[1], in = parts.shape("g_idx")[0];
  const Tensor scales = parts["scales"], words = parts.of("qzeros", at::kInt), order = parts.of("g_idx", at::kInt);
  parts.check(scales.dim() == 2 && scales.size(1) == out && scales.size(0) > 0, "scales", cat("[groups, ", out, "]"));
  const int64_t groups = scales.size(0);
  parts.check(words.sizes() == at::IntArrayRef({groups, parts_of(out * bits, kWord)}), "qzeros",
              cat("[", groups, ", ", parts_of(out * bits, kWord), "]"));
  parts.check(order.min().item<int64_t>() >= 0 && order.max().item<int64_t>() < groups, "g_idx",
              cat("a group below ", groups, " for each of ", in, " columns"));
  Tensor zeros = unpacked_bits(words, bits, out);
  if (stores_zeros_less_one(parts, zeros, bits)) zeros = zeros.to(at::kShort) + 1;  // 1 to 2^bits, not wrapped
  const int64_t group = parts_of(in, groups);
  Weight weight = grouped(unpacked_bits(parts.of("qweight", at::kInt).t(), bits, in), zeros.t(), scales.t(), group);
  const Tensor in_order = at::arange(in, order.options()).div(group, /*rounding_mode=*/"floor");
  if (!at::equal(order, in_order)) weight.order = order;
  return weight;
}

}  // namespace

void check_gptq_settings(const Json& settings) {
  if (settings.at<std::string>("quant_method") == "awq") {
    const auto version = settings.get<std::string>("version", "gemm");
    if (version != "gemm" && version != "GEMM")
      unsupported_settings(settings, "AWQ of version gemm", cat("\"", version, "\""));
    if (settings.get<int64_t>("bits", 4) != 4)
      unsupported_settings(settings, "AWQ of 4 bits", cat(settings.at<int64_t>("bits")));
    return;
  }
  const auto format = settings.get<std::string>("checkpoint_format", settings.get<std::string>("format", "gptq"));
  if (format != "gptq" && format != "gptq_v2")
    unsupported_settings(settings, "checkpoint_format gptq or gptq_v2", cat("\"", format, "\""));
}

const std::vector<Layout>& gptq_layouts() {
  static const std::vector<Layout> layouts = {
      {"gptq", "GPTQ", {"qweight", "qzeros", "scales", "g_idx"}, {}, shape_of_gptq, gptq},
      {"awq", "AWQ gemm", {"qweight", "qzeros", "scales"}, {}, shape_of_awq, awq}};
  return layouts;
}

}  // namespace hotswap::quantised
