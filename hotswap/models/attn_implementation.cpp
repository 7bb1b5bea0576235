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
  bool paged = false;   // "paged|": transformers' continuous batching asks so for keys in pages
  std::string written;  // the rest, as it was given
  std::string name;     // the same; a short name in full
};

Asked asked_by(const std::string& text) {
  constexpr std::string_view kPaged = "paged|";
  const bool paged = text.starts_with(kPaged);
  const std::string written = paged ? text.substr(kPaged.size()) : text;
  for (const auto& [short_name, repo] : kShortNames) {
    if (written == short_name) return {paged, written, repo};
  }
  return {paged, written, written};
}

bool is_kernel(const Asked& asked) { return asked.name.find('/') != std::string::npos; }

// Which version a bare name means: transformers' table.
KernelRef with_version(const KernelRef& ref) {
  if (ref.named()) return ref;
  const int64_t version = same_repo(ref.repo(), "kernels-community/flash-attn2") ? 3 : 1;
  return {ref.repo() + (ref.layer().empty() ? "" : ":" + ref.layer()), {.version = version}};
}

KernelRef parsed(const Asked& asked) {
  KernelRef ref(asked.name);
  if (!ref.is_path()) return ref;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "an attention kernel as org/repo[@revision][:layer]",
               .got = "the folder " + ref.path(),
               .next = "give it a name with LOCAL_KERNELS=org/repo=" + ref.path()});
}

// As transformers does outside of continuous batching, whose caches alone have pages. The rest of the name is known to
// be good, so that what to write instead is: the same attention.
void refuse_pages(const std::string& given, const Asked& asked) {
  if (!asked.paged) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "attention over keys that lie together, as this host's caches keep them",
               .got = cat('"', given, "\": a paged cache, which transformers' continuous batching makes"),
               .next = cat("set attn_implementation to \"", asked.written,
                           "\", which computes the same, or call generate_batch in Python")});
}

}  // namespace

bool is_attention_kernel(const std::string& name) { return is_kernel(asked_by(name)); }

void check_attn_implementation(const std::string& name) {
  const Asked asked = asked_by(name);
  if (is_kernel(asked)) {
    parsed(asked);
  } else {
    attention_kind(asked.name);
  }
  refuse_pages(name, asked);
}

KernelRef attention_kernel(const std::string& name, bool allow_all_kernels, const std::filesystem::path& project) {
  const Asked asked = asked_by(name);
  if (!is_kernel(asked)) return {};
  const KernelRef ref = parsed(asked);
  refuse_pages(name, asked);
  return with_version(HubKernels(allow_all_kernels, project).named(ref));
}

}  // namespace hotswap
