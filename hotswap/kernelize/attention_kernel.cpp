#include "hotswap/kernelize/attention_kernel.h"

#include <algorithm>

#include "hotswap/base/file.h"
#include "hotswap/kernelize/foreign/foreign.h"
#include "hotswap/kernelize/hub_kernels.h"

namespace hotswap {
namespace {

// Which version a bare name means: transformers' table.
KernelRef with_version(const KernelRef& ref) {
  if (ref.named()) return ref;
  const int64_t version = same_repo(ref.repo(), "kernels-community/flash-attn2") ? 3 : 1;
  return {ref.repo() + (ref.layer().empty() ? "" : ":" + ref.layer()), {.version = version}};
}

std::string what_it_holds(const HubKernel& kernel) {
  if (std::filesystem::is_regular_file(kernel.folder / "layers.json")) {
    std::vector<std::string> layers;
    for (const auto& [name, entry] : read_manifest(kernel.folder, kernel.digest_checked).layers) {
      layers.push_back(cat(name, " (", entry.contract, ")"));
    }
    return "the layers " + join(layers);
  }
  const std::filesystem::path file = kernel.folder / "metadata.json";
  const std::string name = parse_metadata(read_file(file), file.string()).name;
  for (const ForeignPackage& package : foreign_packages()) {
    if (name != package.name) continue;
    if (package.layers.empty()) return cat(name, ": ", package.missing);
    std::vector<std::string> layers;
    for (const auto& [layer, entry] : package.layers) layers.push_back(layer);
    return cat(name, ", whose adapter serves ", join(layers));
  }
  return cat(name, ", without layers.json");
}

}  // namespace

void check_attn_implementation(const std::string& name, const AttentionLookup& lookup) {
  if (!is_attention_kernel(name)) return;
  const size_t bar = name.find('|');  // "paged|"
  HubKernels hub(lookup.allow_all_kernels, lookup.project);
  const KernelRef named = hub.named(name.substr(bar == name.npos ? 0 : bar + 1));
  const std::string next =
      "set attn_implementation to sdpa or eager; a package's other layers are named in the kernel mapping";
  if (named.is_path()) {
    throw Error({.wanted = "an attention kernel as org/repo[@revision][:function]",
                 .got = "the folder " + named.path(),
                 .next = next});
  }
  const KernelRef ref = with_version(named);
  const Result<HubKernel>& found = hub.get(ref, lookup.device_kind);
  throw Error({.wanted = cat("attention by ", ref.str(), ", and attention has no contract yet"),
               .got = found ? cat(origin_of(*found), ": ", what_it_holds(*found)) : found.why(),
               .next = next});
}

}  // namespace hotswap
