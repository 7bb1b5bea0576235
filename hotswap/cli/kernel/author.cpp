// kernel init, build, install: what a kernel's author does with a package of his own.
#include <algorithm>
#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/cli/kernel/build.h"
#include "hotswap/cli/kernel/scaffold.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/install.h"
#include "hotswap/hub/names/variant_name.h"
#include "hotswap/hub/net/options.h"
#include "hotswap/hub/package/build_toml.h"

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
  std::string named = fs::is_regular_file(toml) ? read_build_toml(toml).hub_repo : "";
  if (!named.empty()) return named;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "the name to install it under",
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
  // Python's `kernels` takes a CPU variant by that alone where its torch is built for a GPU, be there one or not.
  const bool cpu_only = std::all_of(done.variants.begin(), done.variants.end(), [](const std::string& variant) {
    const auto name = VariantName::parse(variant);
    return name && name->framework != Framework::kNoarch && name->backend.kind == BackendKind::kCpu;
  });
  std::printf(
      "%s\nFrom the cache, without requests to the Hub:\n"
      "HF_HUB_OFFLINE=1 hotswap generate --model DIR --prompt Hello --kernel LAYER=%s\n"
      "Python: HF_HUB_OFFLINE=1, kernels.get_kernel(\"%s\", version=%lld%s)\n",
      done.snapshot.c_str(), done.repo.c_str(), done.repo.c_str(), static_cast<long long>(done.version),
      cpu_only ? ", backend=\"cpu\"" : "");
}

void init(const Scaffold& given) {
  Scaffold scaffold = given;
  if (scaffold.name.empty()) scaffold.name = fs::absolute(scaffold.folder).lexically_normal().filename().string();
  for (const std::string& name : write_scaffold(scaffold)) std::printf("%s\n", (scaffold.folder / name).c_str());
  std::fprintf(stderr, "now: hotswap kernel build %s && python %s/tests/test_*.py  (a Python with torch and kernels)\n",
               scaffold.folder.c_str(), scaffold.folder.c_str());
}

void build(const fs::path& package, bool verbose) {
  const BuiltVariant built = build_package(package, verbose);
  std::printf("%s\n", built.folder.c_str());
  if (built.other_backends.empty()) return;
  std::fprintf(stderr, "not built here: %s\n", join(built.other_backends).c_str());
}

}  // namespace

void add_kernel_authoring(CLI::App& kernel) {
  auto scaffold = std::make_shared<Scaffold>();
  auto* init_verb = kernel.add_subcommand(
      "init", "Write a package to start from: one op for the CPU with its backward, that builds and passes its tests");
  init_verb->add_option("DIR", scaffold->folder, "A folder that is not there yet")->required();
  init_verb->add_option("--name", scaffold->name, "The package's name, default DIR's");
  init_verb->add_option("--repo", scaffold->repo, "ORG/NAME, its place on the Hub");
  init_verb->callback([scaffold] { init(*scaffold); });

  auto package = std::make_shared<std::string>();
  auto verbose = std::make_shared<bool>(false);
  auto* build_verb = kernel.add_subcommand(
      "build", "Build a package's CPU variant for this machine from its build.toml, and check digests and ABI");
  build_verb->add_option("DIR", *package, "A package's source")->required()->check(CLI::ExistingDirectory);
  build_verb->add_flag("--verbose", *verbose, "Show the compiler's command lines");
  build_verb->callback([package, verbose] { build(*package, *verbose); });

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
