// kernel install: what a kernel's author does with a package of his own.
#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/build_toml.h"
#include "hotswap/hub/install.h"
#include "hotswap/hub/options.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

struct InstallFlags {
  std::string package, as;
  bool json = false;
};

// Where the package itself says that it belongs.
std::string repo_of(const InstallFlags& flags) {
  if (!flags.as.empty()) return flags.as;
  const fs::path toml = fs::path(flags.package) / "build.toml";
  const std::string named = fs::is_regular_file(toml) ? read_build_toml(toml).hub_repo : "";
  if (!named.empty()) return named;
  throw Error({.wanted = "the name to install it under",
               .got = "no --as, and no general.hub.repo-id in " + toml.string(),
               .next = "add --as ORG/NAME"});
}

void install(const InstallFlags& flags) {
  const HubOptions options = HubOptions::from_env();
  const InstalledPackage done =
      install_package(HubCache(options.kernels_cache, options.symlinks), flags.package, repo_of(flags));
  if (flags.json) {
    nlohmann::ordered_json out = {
        {"repo", done.repo},         {"version", done.version},        {"commit", done.commit},
        {"variants", done.variants}, {"path", done.snapshot.string()}, {"bytes", done.bytes},
        {"replaced", nullptr}};
    if (!done.replaced.empty()) out["replaced"] = done.replaced;
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  std::printf("%s version %lld is in the cache, commit %s\n", done.repo.c_str(), static_cast<long long>(done.version),
              done.commit.c_str());
  for (const std::string& variant : done.variants) std::printf("  %s\n", variant.c_str());
  if (!done.replaced.empty())
    std::printf("until now v%lld was %s\n", static_cast<long long>(done.version), done.replaced.c_str());
  std::printf("%s\nPython: HF_HUB_OFFLINE=1, kernels.get_kernel(\"%s\", version=%lld)\n", done.snapshot.c_str(),
              done.repo.c_str(), static_cast<long long>(done.version));
}

}  // namespace

void add_kernel_authoring(CLI::App& kernel) {
  auto flags = std::make_shared<InstallFlags>();
  auto* verb = kernel.add_subcommand(
      "install", "Put a built package into the Hub's cache: Python and hotswap then find it offline by its name");
  verb->add_option("DIR", flags->package, "A built package: build/<variant>/ below it")
      ->required()
      ->check(CLI::ExistingDirectory);
  verb->add_option("--as", flags->as, "ORG/NAME; else general.hub.repo-id of its build.toml");
  verb->add_flag("--json", flags->json, "Print JSON");
  verb->callback([flags] { install(*flags); });
}

}  // namespace hotswap
