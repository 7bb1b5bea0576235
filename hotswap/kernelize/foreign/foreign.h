// Compiled packages of the Hub that were not built for hotswap: no layers.json, ops of their own shapes. For those
// known here an adapter serves our contracts: ops with the contracts' schemas, in a namespace beside the package's own,
// each of which calls theirs. So everything behind it (binding, autograd, reports, call counters) is as with our
// packages.
//
// A package is known by the name in its metadata.json, and only where it has no layers.json. What its ops really look
// like is compared when it is loaded; docs/foreign_packages.md has the table with the sources.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "hotswap/kernelize/package/manifest.h"

namespace hotswap {

struct ForeignOp {
  std::string name;                  // "silu"
  std::vector<std::string> schemas;  // what it may look like: it has changed over the versions
};

struct ForeignPackage {
  const char* name;  // metadata.json's
  std::map<std::string, LayerEntry> layers;
  std::vector<ForeignOp> ops;  // that the layers need
  const char* missing;         // why it has no layers here; empty where it has some
};

std::span<const ForeignPackage> foreign_packages();

// The manifest of any package: read_manifest's, or without layers.json one with the layers of its adapter. Error where
// there is none: with the reason, or for a package of Python files alone, the one of `bundled` that stands in for it.
// Runs nothing.
Manifest read_package(const std::filesystem::path& variant_folder, const std::vector<Manifest>& bundled,
                      bool checked = true);

// "hotswap/norm (LigerRMSNorm)": those of `bundled` that stand in for a repository of that name, whoever's it is;
// empty: none.
std::string stand_ins(const std::string& name, const std::vector<Manifest>& bundled);

// After the library was loaded: compares its ops with the table (Error that lists every difference), then registers the
// adapter's. Once per process and id.
void register_adapter(const Manifest& manifest);

}  // namespace hotswap
