// python-env: what makes Python's unmodified transformers run our packages in a script that says `use_kernels=True` and
// nothing else: LOCAL_KERNELS, and in the Hub's cache the refs of the versions that transformers' mapping names.
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hotswap/base/error.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/cache/cache.h"
#include "hotswap/hub/net/options.h"
#include "hotswap/kernelize/package/package.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// The repositories of transformers' own mapping that one of our packages has the layers of, with the version that it
// names. Python's `kernels` looks the version up before LOCAL_KERNELS; offline, in refs/v<version>.
struct MappedRepo {
  const char *repo, *revision, *package;
};
constexpr std::array<MappedRepo, 3> kMapped = {{{"kernels-community/liger-kernels", "v3", "norm"},
                                                {"kernels-community/activation", "v1", "activation"},
                                                {"kernels-community/rotary", "v2", "rotary"}}};

std::vector<Manifest> variants_of(const std::string& package) {
  std::vector<Manifest> variants;
  for (Manifest& m : bundled_packages()) {
    if (m.name == package) variants.push_back(std::move(m));
  }
  if (variants.empty()) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("the package ", package),
                 .got = "none",
                 .next = "build it, or set HOTSWAP_PACKAGES"});
  }
  return variants;
}

// The package's folder, in which `kernels` chooses the variant; the variant itself where there is one, because a torch
// with CUDA refuses one that has CPU kernels only.
fs::path place_of(const std::vector<Manifest>& variants) {
  const fs::path folder = fs::absolute(variants[0].folder);
  fs::path place = variants.size() == 1 ? folder : folder.parent_path().parent_path();
  if (place.string().find(':') != std::string::npos) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a folder without ':', which separates the parts of LOCAL_KERNELS",
                 .got = place.string(),
                 .next = "move the packages, and set HOTSWAP_PACKAGES"});
  }
  return place;
}

void print_python_env(bool json) {
  const HubOptions options = HubOptions::from_env();
  const HubCache cache(options.kernels_cache, options.symlinks);
  std::vector<std::string> parts, refs;
  for (const MappedRepo& mapped : kMapped) {
    const Repo repo{RepoType::kKernel, mapped.repo};
    const std::vector<Manifest> variants = variants_of(mapped.package);
    parts.push_back(cat(mapped.repo, "=", place_of(variants).string()));
    const fs::path ref = cache.folder(repo) / "refs" / mapped.revision;
    if (!cache.read_ref(repo, mapped.revision)) {
      // The commit only has to look like one: LOCAL_KERNELS says where the files are.
      const std::string commit = variants[0].digest.substr(std::string("sha256:").size(), 40);
      cache.prepare(repo);
      cache.begin_snapshot(repo, commit);
      cache.write_ref(repo, mapped.revision, commit);
      std::fprintf(stderr, "placed %s\n", ref.c_str());
    }
    refs.push_back(ref.string());
  }
  if (json) {
    std::printf("%s\n", nlohmann::ordered_json({{"LOCAL_KERNELS", join(parts, ":")}, {"refs", refs}}).dump(2).c_str());
  } else {
    std::printf("LOCAL_KERNELS=%s\n", join(parts, ":").c_str());
  }
}

}  // namespace

void add_python_env(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "python-env",
      "Print the line under which Python's transformers, with use_kernels=True and nothing else, runs these packages "
      "on a GPU: export $(hotswap python-env). Also places refs in the Hub's cache, so that HF_HUB_OFFLINE=1 works");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "Print JSON");
  verb->callback([json] { print_python_env(*json); });
}

}  // namespace hotswap
