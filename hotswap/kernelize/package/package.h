// A built kernel package in this process: verified, loaded once, its ops checked against the contracts.
//
//   const Package& norm = load_package(read_manifest(*find_variant("/opt/packages/norm", "cpu")));
//   norm.calls("rms_norm_fwd");
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hotswap/base/result.h"
#include "hotswap/hub/names/variant.h"
#include "hotswap/kernelize/contract/contract.h"
#include "hotswap/kernelize/package/manifest.h"

namespace hotswap {

class Package;

class PackageLayer : public LayerOps {
 public:
  PackageLayer(const Package& package, std::string name, const LayerEntry& entry);
  const Package& package() const { return package_; }
  const std::string& name() const { return name_; }
  const Capabilities& capabilities() const { return entry_.capabilities; }
  bool claims(const std::string& feature) const override { return capabilities().features.contains(feature); }
  bool runs_on(const std::string& device_kind) const;  // every op has a kernel for it

 private:
  const Package& package_;
  std::string name_;
  const LayerEntry& entry_;
};

class Package {
 public:
  explicit Package(Manifest manifest);
  Package(const Package&) = delete;
  Package& operator=(const Package&) = delete;
  const Manifest& manifest() const { return manifest_; }
  const PackageLayer& layer(const std::string& name) const { return layers_.at(name); }
  int64_t calls(const std::string& op) const;  // how often the op ran in this process

 private:
  Manifest manifest_;
  std::map<std::string, PackageLayer> layers_;
};

// Takes a copy of the library that nobody can change, calls `verify` (whose Error ends it) and verifies the digests,
// then runs that copy's initialisers, then compares every op's schema. Once per process and id, never unloaded: saved
// graphs may still hold its ops.
const Package& load_package(const Manifest& manifest,
                            const std::function<void(const FilesInMemory& files)>& verify = nullptr);

// The variant folder of a package for a device kind: `root` is a package (with build/<variant>/ or <variant>/ below) or
// a variant itself. None, with the trace, where no variant fits.
Result<std::filesystem::path> find_variant(const std::filesystem::path& root, const std::string& device_kind);
// This process as the variant rules see it: its torch, CPU and, for a device kind, its backend.
System this_system(const std::string& device_kind);

// Every variant of every package in the bundled folder, sorted by name; what `hotswap kernel list` prints.
std::vector<Manifest> bundled_packages();
// HOTSWAP_PACKAGES; else ../packages or ../share/hotswap/packages beside this library or program. None: nowhere.
Result<std::filesystem::path> bundled_folder();

// How often an op of a loaded package, given by its name or id, ran in this process; 0 before it is loaded.
int64_t op_calls(const std::string& package, const std::string& op);

}  // namespace hotswap
