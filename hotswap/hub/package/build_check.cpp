// What kernel-builder or a loader would refuse later although build.toml is well-formed (build_toml.h).
#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/package/build_toml.h"

namespace hotswap {
namespace {

constexpr const char* kCuda[] = {"7.0", "7.2",  "7.5",  "8.0",  "8.6",  "8.7",  "8.9",
                                 "9.0", "10.0", "10.1", "10.3", "11.0", "12.0", "12.1"};
constexpr const char* kRocm[] = {"gfx906",  "gfx908",  "gfx90a",  "gfx940",  "gfx941",  "gfx942",
                                 "gfx950",  "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1103",
                                 "gfx1150", "gfx1151", "gfx1200", "gfx1201"};

// "10.0f+PTX" is 10.0
bool known_cuda(std::string_view arch) {
  if (arch.ends_with("+PTX")) arch.remove_suffix(4);
  if (arch.ends_with('a') || arch.ends_with('f')) arch.remove_suffix(1);
  return std::find(std::begin(kCuda), std::end(kCuda), arch) != std::end(kCuda);
}

bool known_rocm(std::string_view arch) {
  return std::find(std::begin(kRocm), std::end(kRocm), arch) != std::end(kRocm);
}

}  // namespace

std::vector<std::string> check_build(const BuildToml& build, const std::filesystem::path& root) {
  std::vector<std::string> problems;
  const auto sources = [&](const std::string& where, const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      if (!std::filesystem::is_regular_file(root / path)) problems.push_back(cat(where, ": no file ", path));
    }
  };
  const auto archs = [&](const std::string& where, const std::vector<std::string>& names, bool cuda) {
    for (const std::string& name : names) {
      if (cuda ? known_cuda(name) : known_rocm(name)) continue;
      problems.push_back(cat(where, ": today's compilers do not build for '", shown(name), "'; they do for ",
                             cuda ? join(kCuda) : join(kRocm)));
    }
  };
  if (build.backends.empty()) problems.emplace_back("general.backends: none");
  sources("framework", build.framework.src);
  archs("torch-noarch", build.framework.cuda_capabilities, true);
  archs("torch-noarch", build.framework.rocm_archs, false);
  for (const auto& [name, kernel] : build.kernels) {
    const std::string where = "kernel." + name;
    sources(where, kernel.src);
    if (kernel.src.empty()) problems.push_back(where + ": no sources");
    archs(where, kernel.archs, kernel.backend == "cuda");
    if (std::find(build.backends.begin(), build.backends.end(), kernel.backend) == build.backends.end()) {
      problems.push_back(
          cat(where, ": its backend ", kernel.backend, " is not in general.backends, so it is not built"));
    }
  }
  if (build.framework.kind == BuildFramework::Kind::kTorchNoarch && !build.kernels.empty()) {
    problems.emplace_back("torch-noarch: a package without compiled code has kernel tables");
  }
  for (const auto& [backend, names] : build.python_depends) {
    for (const std::string& name : names) {
      if (python_requirement(name, backend)) continue;
      problems.push_back(cat("python-depends: kernels may not depend on '", shown(name), "'",
                             backend.empty() ? "" : " for " + backend));
    }
  }
  if (build.cuda_minver && build.cuda_maxver && *build.cuda_minver > *build.cuda_maxver) {
    problems.emplace_back("general.cuda: minver is above maxver");
  }
  if (build.framework.minver && build.framework.maxver && *build.framework.minver > *build.framework.maxver) {
    problems.emplace_back("torch: minver is above maxver");
  }
  return problems;
}

}  // namespace hotswap
