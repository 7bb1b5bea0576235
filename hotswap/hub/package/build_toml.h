// build.toml of a kernel package's source, editions 3 to 5 of kernel-builder's format, read strictly: an unknown key
// anywhere is an Error. Edition 5 says so in general.edition; 4 and 3 have no such key and are told apart by their
// shape (3: no framework table means noarch, version and license may be missing).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/hub/package/metadata.h"

namespace hotswap {

// Dotted numbers without trailing zeros: "12.0" and "12" are one.
using BuildVersion = std::vector<int64_t>;
BuildVersion parse_build_version(const Json& value);

struct BuildKernel {    // [kernel.NAME]
  std::string backend;  // cpu, cuda, metal, rocm, xpu
  std::vector<std::string> depends, src, include, cxx_flags;
  std::vector<std::string> archs;         // cuda-capabilities or rocm-archs; empty: the builder's own choice
  std::vector<std::string> device_flags;  // cuda-flags, hip-flags or sycl-flags
  std::optional<BuildVersion> cuda_minver;
};

struct BuildFramework {  // [torch], [torch-noarch] or [tvm-ffi]
  enum class Kind { kTorch, kTorchNoarch, kTvmFfi };
  Kind kind = Kind::kTorch;
  std::vector<std::string> src, include, cxx_flags;
  std::vector<std::string> pyext = {"py", "pyi"};
  std::optional<BuildVersion> minver, maxver;
  std::map<std::string, BuildVersion> stable_abi;          // backend -> torch; of one for all the key is ""
  std::vector<std::string> cuda_capabilities, rocm_archs;  // noarch: what goes into metadata.json
};

struct BuildToml {
  int edition = 5;
  std::string name, license, upstream, source;
  int64_t version = 1;
  std::vector<std::string> backends;
  std::string hub_repo, hub_branch;
  std::optional<BuildVersion> cuda_minver, cuda_maxver;
  std::map<std::string, std::vector<std::string>> python_depends;   // backend, or "" for all
  std::map<std::string, std::vector<KernelDepend>> kernel_depends;  // the same
  BuildFramework framework;
  std::map<std::string, BuildKernel> kernels;
};

BuildToml parse_build_toml(const Json& json);
BuildToml read_build_toml(const std::filesystem::path& file);

// What is well-formed but will not build or load: sources that are missing below `root`, architectures that no compiler
// knows, backends that are built but not listed, dependencies that kernels may not have. One line each.
std::vector<std::string> check_build(const BuildToml& build, const std::filesystem::path& root);

}  // namespace hotswap
