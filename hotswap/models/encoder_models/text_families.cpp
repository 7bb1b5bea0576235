// The table of encoders. Each file of encoders/ registers its own; families of decoders come by way of
// decoder_trunk.cpp.
#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/encoder_models/decoder_trunk.h"
#include "hotswap/models/encoder_models/text_family.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

std::vector<const TextFamily*>& encoders() {
  static std::vector<const TextFamily*> all;  // made by whichever file registers first
  return all;
}

const TextFamily* encoder_of(const std::string& model_type) {
  for (const TextFamily* family : encoders()) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

}  // namespace

RegisteredTextFamily::RegisteredTextFamily(TextFamily family) : family_(std::move(family)) {
  encoders().push_back(&family_);
}

std::vector<std::string> encoder_types() {
  std::vector<std::string> types;
  for (const TextFamily* family : encoders()) types.push_back(family->model_type);
  std::sort(types.begin(), types.end());
  return types;
}

bool is_encoder(const Json& config) { return encoder_of(config.get<std::string>("model_type", "")) != nullptr; }

TextFamily text_family_of(const Json& config) {
  const auto type = config.at<std::string>("model_type");
  if (const TextFamily* encoder = encoder_of(type)) return *encoder;
  std::vector<std::string> known = encoder_types();
  for (const Family* family : families()) {
    if (type == family->model_type) return decoder_text_family(*family);
    known.emplace_back(family->model_type);
  }
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a model_type that is implemented: ", join(known)),
               .got = cat('"', type, "\" in ", config.where()),
               .next = "docs/adding_a_model.md shows how to add a family"});
}

int64_t read_num_labels(const Json& config) {
  if (config.has("num_labels")) return positive(config, "num_labels");
  if (config.has("id2label"))
    return std::max<int64_t>(1, static_cast<int64_t>(config.child("id2label").items().size()));
  return 2;
}

}  // namespace hotswap
