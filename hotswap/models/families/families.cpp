// The table of families. Each file of this folder registers its own.
#include <algorithm>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

std::vector<const Family*>& registered() {
  static std::vector<const Family*> all;  // made by whichever file registers first
  return all;
}

}  // namespace

RegisteredFamily::RegisteredFamily(Family family) : family_(std::move(family)) { registered().push_back(&family_); }

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> sorted = [] {
    std::vector<const Family*> all = registered();
    std::sort(all.begin(), all.end(),
              [](const Family* a, const Family* b) { return std::string_view(a->model_type) < b->model_type; });
    return all;
  }();
  return sorted;
}

const Family& family_of(const Json& config) {
  const auto type = config.at<std::string>("model_type");
  std::vector<std::string> known;
  for (const Family* family : families()) {
    if (type == family->model_type) return *family;
    known.emplace_back(family->model_type);
  }
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a model_type that is implemented: ", join(known)),
               .got = cat('"', type, "\" in ", config.where()),
               .next = "docs/adding_a_model.md tells how to add a family"});
}

static bool is_own_file(const Family& family, const GgufFile& file, const std::string& prefix) {
  if (family.gguf_is_own != nullptr) return family.gguf_is_own(file, prefix);
  const auto& reads = family.gguf_reads;
  const bool may_have_experts = std::find(reads.begin(), reads.end(), "expert_count") != reads.end();
  return may_have_experts == (file.get<int64_t>(prefix + "expert_count", 0) > 0);
}

const Family& family_of(const GgufFile& file) {
  const auto& name = file.at<std::string>("general.architecture");
  std::set<std::string> known;
  const Family* found = nullptr;  // an architecture may be of several
  for (const Family* family : families()) {
    for (const char* architecture : {family->gguf_architecture, family->gguf_architecture_of_experts}) {
      if (architecture == nullptr) continue;
      known.insert(architecture);
      if (name == architecture && (found == nullptr || is_own_file(*family, file, name + "."))) found = family;
    }
  }
  if (found != nullptr) return *found;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a GGUF file of an architecture among ", join(known)),
               .got = cat("general.architecture '", name, "' in ", file.path().string()),
               .next = "take the model's safetensors checkpoint where the model family is supported"});
}

Json config_of_gguf(const GgufFile& file) {
  const Family& family = family_of(file);
  return config_from_gguf(file, {.name = file.at<std::string>("general.architecture"),
                                 .model_type = family.model_type,
                                 .class_name = family.class_name,
                                 .head_dim_is_rotary = family.gguf_head_dim_is_rotary,
                                 .rotates_part = family.gguf_rotates_part,
                                 .latent_heads = family.gguf_latent_heads,
                                 .norm_eps = family.gguf_norm_eps,
                                 .reads = family.gguf_reads,
                                 .extend = family.gguf_extend});
}

}  // namespace hotswap
