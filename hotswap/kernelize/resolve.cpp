#include "hotswap/kernelize/resolve.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/nearest_name.h"
#include "hotswap/hub/names/version.h"
#include "hotswap/kernelize/foreign/foreign.h"
#include "hotswap/kernelize/package/package.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> layer_names(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : manifest.layers) names.push_back(name);
  return names;
}

// Does what stands in for a repository answer for the version that is asked for?
bool answers(const StandIn& entry, const KernelRef& ref) {
  if (!same_repo(entry.repo, ref.repo())) return false;
  if (!entry.version) return true;
  const auto newest = static_cast<uint64_t>(*entry.version);
  if (ref.version()) return static_cast<uint64_t>(*ref.version()) <= newest;
  return !ref.is_specifier() || SpecifierSet::parse(ref.revision()).least_major() <= newest;
}

// The name after ':', or else what the layer may be called there, best first: the repository's own name, as far as
// bundled packages know it (Silu of kernels-community/activation for SiLU), and the mapping's.
std::vector<std::string> names_of(const std::string& slot_layer, const KernelRef& ref,
                                  const std::vector<Manifest>& bundled) {
  if (!ref.layer().empty()) return {ref.layer()};
  for (const Manifest& manifest : bundled) {
    const auto own = manifest.layers.find(slot_layer);
    if (own == manifest.layers.end()) continue;
    for (const StandIn& entry : manifest.stands_in_for) {
      const bool same = entry.our_layer == slot_layer || manifest.layers.at(entry.our_layer).ops == own->second.ops;
      if (same && same_repo(entry.repo, ref.repo())) return {entry.their_layer, slot_layer};
    }
  }
  return {slot_layer};
}

ResolvedKernel from_variant(Manifest manifest, const KernelRef& ref, const std::vector<std::string>& names,
                            const std::string& note) {
  const std::string* ours = nullptr;
  for (const std::string& name : names) {
    if (ours == nullptr) ours = manifest.layer_named(name, ref.repo());
  }
  if (ours == nullptr) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("a layer '", names.front(), "' in ", manifest.folder.string()),
                 .got = cat("the layers ", join(layer_names(manifest))),
                 .next = "use one of them after the colon, as in package:Layer"});
  }
  const std::string name = *ours;
  return {std::move(manifest), name, note};
}

Result<ResolvedKernel> from_folder(const fs::path& folder, const KernelRef& ref, const std::vector<std::string>& names,
                                   const std::string& device_kind, const std::vector<Manifest>& bundled,
                                   const std::string& note) {
  const auto variant = find_variant(folder, device_kind);
  if (!variant) return Reason{variant.why()};
  return from_variant(read_package(*variant, bundled), ref, names, note);
}

// The variants of one bundled package: those whose name, or stand-in for this layer, fits.
struct Candidates {
  std::vector<const Manifest*> variants;
  std::string note;
};

Candidates bundled_by_name(const KernelRef& ref, const std::string& layer, const std::vector<Manifest>& bundled) {
  Candidates result;
  const std::string name = ref.repo().substr(std::string(kBundledOrg).size() + 1);
  for (const Manifest& manifest : bundled) {
    if (manifest.name != name) continue;
    if (!ref.revision().empty() || (ref.version() && *ref.version() != manifest.version)) {
      throw Error({.kind = ErrorKind::kNotFound,
                   .wanted = cat("the bundled package ", ref.str()),
                   .got = cat("version ", manifest.version),
                   .next = "drop what follows '@', or use a package folder"});
    }
    if (manifest.layer_named(layer, ref.repo()) == nullptr) {
      throw Error({.kind = ErrorKind::kNotFound,
                   .wanted = cat("a layer '", layer, "' in the bundled package ", name),
                   .got = cat("the layers ", join(layer_names(manifest))),
                   .next = "use one of them after the colon, as in package:Layer"});
    }
    result.variants.push_back(&manifest);
  }
  return result;
}

Candidates bundled_by_stand_in(const KernelRef& ref, const std::string& layer, const std::vector<Manifest>& bundled) {
  Candidates result;
  for (const Manifest& manifest : bundled) {
    for (const StandIn& entry : manifest.stands_in_for) {
      if (!answers(entry, ref) || entry.their_layer != layer) continue;
      result.variants.push_back(&manifest);
      result.note = cat("stands in for ", ref.repo(), ":", layer);
      break;
    }
  }
  return result;
}

// What bundled packages answer to: names of repositories, and of the one asked for the layers.
struct Answered {
  std::set<std::string> names, layers;
};

Answered answered(const KernelRef& ref, const std::vector<Manifest>& bundled) {
  Answered result;
  for (const Manifest& manifest : bundled) {
    result.names.insert(cat(kBundledOrg, "/", manifest.name));
    for (const StandIn& entry : manifest.stands_in_for) {
      result.names.insert(entry.repo);
      if (answers(entry, ref)) result.layers.insert(entry.their_layer);
    }
  }
  return result;
}

// Of a layer for which a bundled package stands in, but for older versions than the one that `ref` names; else empty.
std::string older_stand_in(const KernelRef& ref, const std::string& layer, const std::vector<Manifest>& bundled) {
  for (const Manifest& manifest : bundled) {
    for (const StandIn& entry : manifest.stands_in_for) {
      if (!same_repo(entry.repo, ref.repo()) || entry.their_layer != layer || answers(entry, ref)) continue;
      return cat("the bundled package hotswap/", manifest.name, " stands in for its versions up to v", *entry.version);
    }
  }
  return "";
}

std::string bundled_names(const KernelRef& ref, const std::string& layer, const std::vector<Manifest>& bundled) {
  if (const std::string older = older_stand_in(ref, layer, bundled); !older.empty()) return older;
  const Answered known = answered(ref, bundled);
  const auto nearest = nearest_name(ref.repo(), {known.names.begin(), known.names.end()});
  return nearest ? cat("did you mean the bundled ", *nearest, "?") : "`hotswap kernel list` names what is bundled";
}

[[noreturn]] void unknown_kernel(const KernelRef& ref, const std::string& layer, const std::vector<Manifest>& bundled) {
  const Answered known = answered(ref, bundled);
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("a kernel ", ref.repo(), ":", layer, " on this machine"),
               .got = known.layers.empty() ? "none; " + bundled_names(ref, layer, bundled)
                                           : cat("of that repository only the layers ", join(known.layers)),
               .next = cat(known.layers.empty() ? "take a bundled one" : "use one of these",
                           ", or say where it lies with LOCAL_KERNELS=", ref.repo(), "=/path",
                           known.layers.empty() ? "" : ", or name a branch or commit to get the repository itself")});
}

Result<ResolvedKernel> from_hub(const KernelRef& ref, const std::vector<std::string>& names,
                                const std::string& device_kind, const std::vector<Manifest>& bundled, HubKernels& hub) {
  const Result<HubKernel>* kernel = nullptr;
  try {
    kernel = &hub.get(ref, device_kind);
  } catch (const HubError& error) {  // the Hub does not have it, or cannot be asked: what is here may help
    throw Error({.kind = error.kind(),
                 .wanted = cat("the kernel ", ref.repo(), ":", names.front(), ": ", error.wanted()),
                 .got = error.got(),
                 .next = cat(error.next(), "; ", bundled_names(ref, names.front(), bundled),
                             "; or say where it lies with LOCAL_KERNELS=", ref.repo(), "=/path")});
  } catch (const Error& error) {  // not trusted, or no version fits
    const std::string older = older_stand_in(ref, names.front(), bundled);
    if (older.empty()) throw;
    throw Error(
        {.kind = error.kind(), .wanted = error.wanted(), .got = error.got(), .next = cat(error.next(), "; ", older)});
  }
  if (!*kernel) {
    const std::string instead = stand_ins(ref.repo().substr(ref.repo().find('/') + 1), bundled);
    return Reason{cat(kernel->why(), instead.empty() ? "" : "; bundled packages stand in for it: " + instead)};
  }
  const HubKernel& found = **kernel;
  ResolvedKernel resolved =
      from_variant(read_package(found.folder, bundled, found.digest_checked), ref, names, origin_of(found));
  resolved.verify = [&hub, &found](const FilesInMemory& files) { hub.verify(found, files); };
  return resolved;
}

}  // namespace

std::map<std::string, std::string> parse_local_kernels(const std::string& text) {
  std::map<std::string, std::string> result;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(':', start), text.size());
    const std::string entry = text.substr(start, end - start);
    start = end + 1;
    if (entry.empty() && text.empty()) break;
    const size_t equals = entry.find('=');
    if (equals == entry.npos || equals == 0 || equals + 1 == entry.size()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "LOCAL_KERNELS as org/repo=path:org/repo=path",
                   .got = cat("the entry '", entry, "'"),
                   .next = "correct it or unset it"});
    }
    result[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return result;
}

Result<ResolvedKernel> resolve_kernel(const KernelRef& asked, const std::string& slot_layer,
                                      const std::string& device_kind, const std::vector<Manifest>& bundled,
                                      HubKernels& hub) {
  const KernelRef ref = hub.named(asked);
  const std::vector<std::string> names = names_of(slot_layer, ref, bundled);
  const std::string& layer = names.front();
  if (ref.is_path()) return from_folder(ref.path(), ref, names, device_kind, bundled, "");
  for (const auto& [repo, folder] : parse_local_kernels(env(EnvVar::kLocalKernels).value_or(""))) {
    if (same_repo(repo, ref.repo())) {
      return from_folder(folder, ref, names, device_kind, bundled, cat("LOCAL_KERNELS: ", repo, " is ", folder));
    }
  }
  const bool ours = ref.repo().starts_with(std::string(kBundledOrg) + "/");
  const bool these_bytes = ref.locked() || (!ref.revision().empty() && !ref.is_specifier());
  if (!ours && (these_bytes || answered(ref, bundled).layers.empty())) {
    return from_hub(ref, names, device_kind, bundled, hub);
  }
  const Candidates found = ours ? bundled_by_name(ref, layer, bundled) : bundled_by_stand_in(ref, layer, bundled);
  if (found.variants.empty()) unknown_kernel(ref, layer, bundled);

  std::vector<VariantCandidate> candidates;
  for (const Manifest* manifest : found.variants) candidates.push_back({manifest->variant, manifest->archs});
  const VariantChoice choice = choose_variant(candidates, this_system(device_kind));
  if (!choice.chosen) {
    return Reason{
        cat("no variant of ", found.variants.front()->name, " fits ", device_kind, ": ", choice.trace_text())};
  }
  for (const Manifest* manifest : found.variants) {
    if (manifest->variant == *choice.chosen) {
      return ResolvedKernel{*manifest, *manifest->layer_named(layer, ref.repo()), found.note};
    }
  }
  unknown_kernel(ref, layer, bundled);
}

KernelMapping default_mapping(const std::vector<Manifest>& bundled) {
  KernelMapping mapping;
  std::map<std::pair<std::string, std::string>, std::string> owner;
  const auto& kinds = device_kinds();
  for (const Manifest& manifest : bundled) {
    const std::string& kind = manifest.backend == "metal" ? "mps" : manifest.backend;
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) continue;
    for (const auto& [layer, entry] : manifest.layers) {
      const auto [place, fresh] = owner.try_emplace({layer, kind}, manifest.name);
      if (!fresh && place->second != manifest.name) {
        throw Error({.kind = ErrorKind::kInvalidArgument,
                     .wanted = cat("one bundled package for the layer ", layer, " on ", kind),
                     .got = cat(place->second, " and ", manifest.name),
                     .next = "remove one from the folder of bundled packages"});
      }
      mapping.add(layer, kind, KernelRef(cat(kBundledOrg, "/", manifest.name, ":", layer)));
    }
  }
  return mapping;
}

const std::vector<std::pair<std::string, std::string>>& fused_layers() {
  static const std::vector<std::pair<std::string, std::string>> table = {
      {"AddRMSNorm", "RMSNorm"},     {"SwiGLUMLP", "SiLU"},
      {"GeGLUMLP", "GeluTanh"},      {"LinearCrossEntropy", "ForCausalLMLoss"},
      {"DecoderLayer", "RMSNorm"},   {"DecoderLayer", "AddRMSNorm"},
      {"DecoderLayer", "Linear"},    {"DecoderLayer", "PackedLinear"},
      {"DecoderLayer", "attention"}, {"DecoderLayer", "rotary_pos_emb"},
      {"DecoderLayer", "SwiGLUMLP"}, {"DecoderLayer", "GeGLUMLP"},
      {"DecoderLayer", "SiLU"},      {"DecoderLayer", "GeluTanh"}};
  return table;
}

}  // namespace hotswap
