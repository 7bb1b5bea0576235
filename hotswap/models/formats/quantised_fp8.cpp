// FP8 of DeepSeek's and Qwen's own checkpoints (quant_method "fp8"), of fbgemm and of ModelOpt, and ModelOpt's NVFP4.
#include "hotswap/base/error.h"
#include "hotswap/models/formats/quantised_impl.h"

namespace hotswap::quantised {
namespace {

Weight block_fp8(const Parts& parts) {
  const Shape block = parts.settings().get<std::vector<int64_t>>("weight_block_size", {});
  return scaled(parts, WeightFormat::kE4m3, parts.of("weight", at::kFloat8_e4m3fn), "weight_scale_inv", block);
}

Weight fp8(const Parts& parts) {
  return scaled(parts, WeightFormat::kE4m3, parts.of("weight", at::kFloat8_e4m3fn), "weight_scale", {});
}

Shape shape_of_nvfp4(const Parts& parts) { return shape_of_pairs(parts, "weight"); }

Weight nvfp4_of_modelopt(const Parts& parts) {
  const Shape shape = shape_of_nvfp4(parts);
  parts.check(shape[1] % 16 == 0 && parts.shape("weight_scale") == Shape({shape[0], shape[1] / 16}), "weight_scale",
              "one e4m3 for 16 columns");
  parts.check(parts.of("weight_scale_2", at::kFloat).numel() == 1, "weight_scale_2", "one element");
  return {.format = WeightFormat::kTable16,
          .data = parts.of("weight", at::kByte),
          .scales = parts.of("weight_scale", at::kFloat8_e4m3fn),
          .global_scale = parts["weight_scale_2"].view({1}),
          .table = e2m1_table(),
          .group = 16,
          .logical_shape = shape};
}

}  // namespace

void check_modelopt_settings(const Json& settings) {
  const auto algorithm = settings.get<std::string>("quant_algo", "");
  for (const char* known : {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4"}) {
    if (algorithm == known) return;
  }
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "quant_algo FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4 or W4A16_NVFP4",
               .got = cat("\"", algorithm, "\" in ", settings.where()),
               .next = "take another quantisation of the model"});
}

const std::vector<Layout>& fp8_layouts() {
  static const std::vector<Layout> layouts = {
      {"fp8", "FP8 in blocks", {"weight", "weight_scale_inv"}, {"activation_scale"}, shape_of_weight, block_fp8},
      {"fbgemm_fp8", "FP8 a row", {"weight", "weight_scale"}, {"input_scale_ub"}, shape_of_weight, fp8},
      {"modelopt",
       "NVFP4",
       {"weight", "weight_scale", "weight_scale_2"},
       {"input_scale", "k_scale", "v_scale"},
       shape_of_nvfp4,
       nvfp4_of_modelopt},
      {"modelopt", "FP8", {"weight", "weight_scale"}, {"input_scale", "k_scale", "v_scale"}, shape_of_weight, fp8}};
  return layouts;
}

}  // namespace hotswap::quantised
