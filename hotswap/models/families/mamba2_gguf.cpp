// Mamba-2's mixer in GGUF files, which have its decay as -exp(A_log), and vectors and the convolution in other shapes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/log.h>
#include <ATen/ops/neg.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/models/families/mamba2.h"

namespace hotswap {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;
using Tensors = std::vector<at::Tensor>;

std::vector<int64_t> flat(const Shapes& parts) {
  int64_t count = 1;
  for (const int64_t extent : parts[0]) count *= extent;
  return {count};
}
at::Tensor flattened(const Tensors& parts, at::ScalarType dtype) { return parts[0].flatten().to(dtype); }
at::Tensor log_of_decay(const Tensors& parts, at::ScalarType dtype) {
  return at::log(at::neg(parts[0].flatten())).to(dtype);
}

// [channels, width] -> [channels, 1, width]
std::vector<int64_t> with_one(const Shapes& parts) {
  std::vector<int64_t> shape = parts[0];
  if (shape.size() == 2) shape.insert(shape.begin() + 1, 1);
  return shape;
}
at::Tensor convolution(const Tensors& parts, at::ScalarType dtype) {
  return parts[0].reshape({parts[0].size(0), 1, -1}).to(dtype);
}

}  // namespace

TensorRules gguf_mamba2_rules(const std::string& part) {
  return {TensorRule::rename("blk.*.ssm_in", part + "in_proj"),
          TensorRule::rename("blk.*.ssm_out", part + "out_proj"),
          TensorRule::rename("blk.*.ssm_conv1d.bias", part + "conv1d.bias"),
          TensorRule::rename("blk.*.ssm_dt.bias", part + "dt_bias"),
          TensorRule::decode({"blk.*.ssm_conv1d.weight"}, part + "conv1d.weight", {with_one, convolution}),
          TensorRule::decode({"blk.*.ssm_a"}, part + "A_log", {flat, log_of_decay}),
          TensorRule::decode({"blk.*.ssm_d"}, part + "D", {flat, flattened}),
          TensorRule::decode({"blk.*.ssm_norm.weight"}, part + "norm.weight", {flat, flattened})};
}

const std::vector<std::string>& gguf_mamba2_keys() {
  static const std::vector<std::string> keys = {"ssm.conv_kernel", "ssm.group_count", "ssm.inner_size",
                                                "ssm.state_size", "ssm.time_step_rank"};
  return keys;
}

bool gguf_has_in_a_layer(const GgufFile& file, const std::string& tensor) {
  const auto& names = file.names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.ends_with("." + tensor); });
}

void gguf_extend_bamba_mixer(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  const auto number = [&](const char* key) { return file.at<int64_t>(prefix + "ssm." + key); };
  const int64_t channels = number("inner_size"), heads = number("time_step_rank");
  const auto hidden = config.at("hidden_size").get<int64_t>();
  if (heads < 1 || channels % heads != 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat(prefix, "ssm.inner_size that is a multiple of ssm.time_step_rank, the number of heads"),
                 .got = cat(channels, " and ", heads, " in ", file.path().string()),
                 .next = "convert the model again with a current llama.cpp"});
  }
  config["mamba_expand"] = channels / hidden;
  config["mamba_n_heads"] = heads;
  config["mamba_d_head"] = channels / heads;
  config["mamba_d_state"] = number("state_size");
  config["mamba_d_conv"] = number("conv_kernel");
  config["mamba_n_groups"] = number("group_count");
  config["mamba_conv_bias"] = gguf_has_in_a_layer(file, "ssm_conv1d.bias");
  config["mamba_proj_bias"] = gguf_has_in_a_layer(file, "ssm_in.bias");
}

}  // namespace hotswap
