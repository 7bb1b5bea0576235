// compressed-tensors (llm-compressor): which of its layouts a module has follows from its tensors, because groups of
// one config may overlap.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/models/formats/quantised_impl.h"

namespace hotswap::quantised {
namespace {

Shape shape_of_packed_words(const Parts& parts) {
  const Tensor shape = parts.of("weight_shape", at::kLong);
  parts.check(shape.numel() == 2, "weight_shape", "two elements");
  return {shape[0].item<int64_t>(), shape[1].item<int64_t>()};
}

Shape shape_of_packed_bytes(const Parts& parts) { return shape_of_pairs(parts, "weight_packed"); }

// Codes of 4 or 8 bits in int32 words, 2^(bits - 1) above their values; zeros likewise, packed along rows.
Weight packed_words(const Parts& parts) {
  const Shape shape = shape_of_packed_words(parts);
  const int64_t out = shape[0], in = shape[1];
  const Tensor words = parts.of("weight_packed", at::kInt), scales = parts["weight_scale"];
  const int64_t bits = words.dim() == 2 && words.size(0) == out && words.size(1) == parts_of(in, 8)   ? 4
                       : words.dim() == 2 && words.size(0) == out && words.size(1) == parts_of(in, 4) ? 8
                                                                                                      : 0;
  parts.check(bits != 0, "weight_packed", cat("codes of 4 or 8 bits of [", out, ", ", in, "] in int32 words"));
  parts.check(scales.dim() == 2 && scales.size(0) == out && scales.size(1) > 0 && in % scales.size(1) == 0,
              "weight_scale", cat("[", out, ", groups of ", in, " columns]"));
  const int64_t groups = scales.size(1), middle = int64_t{1} << (bits - 1);
  Tensor zeros = at::full({1, 1}, middle, at::TensorOptions().dtype(at::kShort));
  if (parts.has("weight_zero_point")) {
    const Tensor packed = parts.of("weight_zero_point", at::kInt);  // [out * bits / 32, groups]
    parts.check(packed.dim() == 2 && packed.size(0) == parts_of(out * bits, 32) && packed.size(1) == groups,
                "weight_zero_point", cat("[", parts_of(out * bits, 32), ", ", groups, "]"));
    zeros = unpacked_bits(packed.t(), bits, out).t();
  }
  Weight weight = grouped(unpacked_bits(words, bits, in), zeros, scales, in / groups);
  if (parts.has("weight_g_idx")) {
    weight.order = parts.of("weight_g_idx", at::kInt);
    parts.check(weight.order.numel() == in && weight.order.min().item<int64_t>() >= 0 &&
                    weight.order.max().item<int64_t>() < groups,
                "weight_g_idx", cat("a group below ", groups, " for each of ", in, " columns"));
  }
  return weight;
}

Tensor e2m1_bytes(const Parts& parts, const Shape& shape, int64_t group) {
  parts.check(shape[1] % group == 0 && parts.shape("weight_scale") == Shape({shape[0], shape[1] / group}),
              "weight_scale", cat("one for ", group, " columns"));
  return parts.of("weight_packed", at::kByte);
}

Weight nvfp4(const Parts& parts) {
  const Shape shape = shape_of_packed_bytes(parts);
  const Tensor divisor = parts.of("weight_global_scale", at::kFloat);
  parts.check(divisor.numel() == 1, "weight_global_scale", "one element");
  return {.format = WeightFormat::kTable16,
          .data = e2m1_bytes(parts, shape, 16),
          .scales = parts.of("weight_scale", at::kFloat8_e4m3fn).to(at::kFloat) / divisor.view({1, 1}),
          .table = e2m1_table(),
          .group = 16,
          .logical_shape = shape};
}

Weight mxfp4_of_packed(const Parts& parts) {
  const Shape shape = shape_of_packed_bytes(parts);
  return {.format = WeightFormat::kTable16,
          .data = e2m1_bytes(parts, shape, 32),
          .scales = parts.of("weight_scale", at::kByte).contiguous().view(at::kFloat8_e8m0fnu).to(at::kFloat),
          .table = e2m1_table(),
          .group = 32,
          .logical_shape = shape};
}

// The sizes of blocks, where a group of the config has some.
Shape block_structure(const Json& settings) {
  if (!settings.has("config_groups")) return {};
  for (const auto& [name, group] : settings.child("config_groups").items()) {
    if (!group.has("weights")) continue;
    if (group.child("weights").has("block_structure")) {
      return group.child("weights").at<std::vector<int64_t>>("block_structure");
    }
  }
  return {};
}

Weight scaled_weight(const Parts& parts) {
  const bool integers = parts.dtype("weight") == at::kChar;
  parts.check(integers || parts.dtype("weight") == at::kFloat8_e4m3fn, "weight", "int8 or float8_e4m3fn");
  Weight weight = scaled(parts, integers ? WeightFormat::kInt8 : WeightFormat::kE4m3, parts["weight"], "weight_scale",
                         block_structure(parts.settings()));
  if (integers && parts.has("weight_zero_point")) {
    const Tensor zeros = parts["weight_zero_point"];
    parts.check(zeros.numel() == weight.scales.numel(), "weight_zero_point", "one a scale");
    weight.zeros = zeros.view(weight.scales.sizes());
  }
  return weight;
}

}  // namespace

void check_compressed_tensors_settings(const Json& settings) {
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = expected,
                 .got = cat(got, " in ", settings.where()),
                 .next = "take another quantisation of the model"});
  };
  const auto status = settings.get<std::string>("quantization_status", "compressed");
  if (status != "compressed") refuse("quantization_status compressed", cat("\"", status, "\""));
  if (settings.has("sparsity_config") &&
      settings.child("sparsity_config").get<std::string>("format", "dense") != "dense")
    refuse("sparsity_config of format dense", "another one");
  const auto check = [&](const std::string& format) {
    for (const char* known : {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
                              "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision"}) {
      if (format == known) return;
    }
    refuse(
        "a format of compressed-tensors among pack-quantized, int-quantized, float-quantized, naive-quantized, "
        "nvfp4-pack-quantized, mxfp4-pack-quantized, mixed-precision",
        cat("\"", format, "\""));
  };
  check(settings.get<std::string>("format", "pack-quantized"));
}

bool compressed_tensors_quantise(const Json& settings) {
  if (!settings.has("config_groups")) return false;
  const auto groups = settings.child("config_groups").items();
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) { return group.second.has("weights"); });
}

const std::vector<Layout>& compressed_tensors_layouts() {
  static const std::vector<std::string> scales = {"input_scale",  "input_zero_point", "input_global_scale",
                                                  "output_scale", "k_scale",          "v_scale"};
  static const auto with = [](std::vector<std::string> extra) {
    extra.insert(extra.end(), scales.begin(), scales.end());
    return extra;
  };
  static const char* const kMethod = "compressed-tensors";
  static const std::vector<Layout> layouts = {
      {kMethod,
       "pack-quantized",
       {"weight_packed", "weight_scale", "weight_shape"},
       with({"weight_zero_point", "weight_g_idx"}),
       shape_of_packed_words,
       packed_words},
      {kMethod,
       "NVFP4",
       {"weight_packed", "weight_scale", "weight_global_scale"},
       scales,
       shape_of_packed_bytes,
       nvfp4},
      {kMethod, "MXFP4", {"weight_packed", "weight_scale"}, scales, shape_of_packed_bytes, mxfp4_of_packed},
      {kMethod,
       "int8 or FP8",
       {"weight", "weight_scale"},
       with({"weight_zero_point"}),
       shape_of_weight,
       scaled_weight}};
  return layouts;
}

}  // namespace hotswap::quantised
