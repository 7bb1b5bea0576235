#include "hotswap/models/encoder_models/pooling.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr const char* kPoolingModes[] = {"cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"};
// In the order in which their vectors stand.
constexpr std::pair<const char*, const char*> kOldModes[] = {
    {"pooling_mode_cls_token", "cls"},
    {"pooling_mode_max_tokens", "max"},
    {"pooling_mode_mean_tokens", "mean"},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
    {"pooling_mode_weightedmean_tokens", "weightedmean"},
    {"pooling_mode_lasttoken", "lasttoken"}};

// texts: [count, length, dim] -> [count, dim]. `prompt` is less than the length.
Tensor pooled_by(const std::string& mode, const Tensor& texts, int64_t prompt) {
  const int64_t length = texts.size(1), kept = length - prompt;
  const Tensor rest = texts.narrow(1, prompt, kept);
  if (mode == "cls") return rest.select(1, 0);
  if (mode == "lasttoken") return texts.select(1, length - 1);
  if (mode == "max") return at::amax(rest, {1});
  const at::ScalarType wide = c10::promoteTypes(texts.scalar_type(), at::kFloat);
  if (mode == "weightedmean") {
    const Tensor weights = at::arange(prompt + 1, length + 1, rest.options().dtype(wide)).view({1, kept, 1});
    return at::div(at::mul(rest, weights).sum(1), weights.sum()).to(texts.scalar_type());
  }
  const double count = mode == "mean" ? static_cast<double>(kept) : std::sqrt(static_cast<double>(kept));
  return at::div(rest.sum(at::IntArrayRef{1}, /*keepdim=*/false, wide), count).to(texts.scalar_type());
}

std::vector<std::string> modes_of(const Json& config) {
  if (const auto found = config.find("pooling_mode")) {
    return found->is_array() ? found->as<std::vector<std::string>>() : std::vector{found->as<std::string>()};
  }
  std::vector<std::string> modes;
  for (const auto& [key, mode] : kOldModes) {
    if (config.get<bool>(key, false)) modes.emplace_back(mode);
  }
  return modes.empty() ? std::vector<std::string>{"mean"} : modes;
}

}  // namespace

Tensor Pooling::forward(const Tensor& hidden, const std::vector<int64_t>& lengths, int64_t prompt) const {
  std::vector<Tensor> rows;
  int64_t begin = 0;
  for (size_t i = 0; i < lengths.size();) {  // neighbours of one length at once
    size_t end = i + 1;
    while (end < lengths.size() && lengths[end] == lengths[i]) ++end;
    const int64_t count = static_cast<int64_t>(end - i), length = lengths[i];
    const Tensor texts = hidden.narrow(0, begin, count * length).unflatten(0, {count, length});
    const int64_t hidden_prompt = include_prompt || prompt >= length ? 0 : prompt;
    std::vector<Tensor> vectors;
    for (const std::string& mode : modes) vectors.push_back(pooled_by(mode, texts, hidden_prompt));
    rows.push_back(vectors.size() == 1 ? vectors.front() : at::cat(vectors, 1));
    begin += count * length;
    i = end;
  }
  return rows.size() == 1 ? rows.front() : at::cat(rows, 0);
}

Pooling Pooling::read(const Json& config) {
  Pooling pooling{.modes = modes_of(config), .include_prompt = config.get<bool>("include_prompt", true)};
  for (const std::string& mode : pooling.modes) {
    if (std::find(std::begin(kPoolingModes), std::end(kPoolingModes), mode) != std::end(kPoolingModes)) continue;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a pooling mode: ", join(kPoolingModes)),
                 .got = cat('"', mode, "\" in ", config.where()),
                 .next = "correct pooling_mode there"});
  }
  return pooling;
}

}  // namespace hotswap
