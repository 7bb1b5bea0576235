#include "hotswap/models/attn_implementation.h"

#include "hotswap/base/error.h"
#include "hotswap/kernelize/hub_kernels.h"
#include "hotswap/layers/attention.h"

namespace hotswap {
namespace {

constexpr std::pair<const char*, const char*> kShortNames[] = {
    {"flash_attention_2", "kernels-community/flash-attn2"},
    {"flash_attention_3", "kernels-community/vllm-flash-attn3"}};

// What is asked of the attention, in parts.
struct Asked {
  bool paged = false;  // "paged|": transformers' continuous batching asks so for keys in pages
  std::string name;    // the rest; a short name in full
};

Asked asked_by(const std::string& text) {
  constexpr std::string_view kPaged = "paged|";
  const bool paged = text.starts_with(kPaged);
  std::string name = paged ? text.substr(kPaged.size()) : text;
  for (const auto& [short_name, repo] : kShortNames) {
    if (name == short_name) name = repo;
  }
  return {paged, name};
}

// Which version a bare name means: transformers' table.
KernelRef with_version(const KernelRef& ref) {
  if (ref.named()) return ref;
  const int64_t version = same_repo(ref.repo(), "kernels-community/flash-attn2") ? 3 : 1;
  return {ref.repo() + (ref.layer().empty() ? "" : ":" + ref.layer()), {.version = version}};
}

// This host's caches have no pages.
void refuse_pages(const std::string& name) {
  if (!asked_by(name).paged) return;
  throw Error({.wanted = "attention over keys that lie together",
               .got = cat('"', name, "\": a paged cache, which is not implemented"),
               .next = "drop 'paged|'"});
}

KernelRef parsed(const std::string& name) {
  refuse_pages(name);
  KernelRef ref(asked_by(name).name);
  if (!ref.is_path()) return ref;
  throw Error({.wanted = "an attention kernel as org/repo[@revision][:layer]",
               .got = "the folder " + ref.path(),
               .next = "give it a name with LOCAL_KERNELS=org/repo=" + ref.path()});
}

}  // namespace

bool is_attention_kernel(const std::string& name) { return asked_by(name).name.find('/') != std::string::npos; }

void check_attn_implementation(const std::string& name) {
  refuse_pages(name);
  if (is_attention_kernel(name)) {
    parsed(name);
  } else {
    attention_kind(name);
  }
}

KernelRef attention_kernel(const std::string& name, bool allow_all_kernels, const std::filesystem::path& project) {
  if (!is_attention_kernel(name)) return {};
  return with_version(HubKernels(allow_all_kernels, project).named(parsed(name)));
}

}  // namespace hotswap
