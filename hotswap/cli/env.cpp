#include "hotswap/base/env.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <cstdio>

#include "hotswap/base/memory.h"
#include "hotswap/cli/table.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/kernelize/package.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

struct SeenVariant {
  std::string package, variant, verdict;
};

// Each variant of each bundled package, with what the variant rules say of it on this machine.
std::vector<SeenVariant> seen_variants(const std::string& device) {
  std::map<std::string, std::vector<std::string>> by_package;
  for (const Manifest& manifest : bundled_packages()) by_package[manifest.name].push_back(manifest.variant);
  std::vector<SeenVariant> seen;
  for (const auto& [package, variants] : by_package) {
    for (const auto& [variant, verdict] : choose_variant(variants, this_system(device)).trace) {
      seen.push_back({package, variant, verdict});
    }
  }
  return seen;
}

OutJson gather() {
  const std::string device = at::hasCUDA() ? "cuda" : "cpu";
  const System host = this_system(device);
  OutJson out;
  out["device"] = device;
  out["torch"] = TORCH_VERSION;
  out["threads"] = at::get_num_threads();
  out["cpu_capability"] = at::get_cpu_capability();
  out["host"] = {{"cpu", host.cpu}, {"os", host.os}, {"backend", host.backend.text()}};
  const auto folder = bundled_folder();
  out["packages_folder"] = folder ? OutJson((*folder).string()) : OutJson(nullptr);
  if (!folder) out["packages_reason"] = folder.why();
  out["variants"] = OutJson::array();
  for (const SeenVariant& seen : seen_variants(device)) {
    out["variants"].push_back({{"package", seen.package}, {"variant", seen.variant}, {"verdict", seen.verdict}});
  }
  out["environment"] = OutJson::array();
  for (const EnvRow& row : env_table()) {
    const auto value = env(row.variable);
    const bool secret = (row.variable == EnvVar::kHfToken || row.variable == EnvVar::kHuggingFaceHubToken) && value;
    out["environment"].push_back({{"name", row.name},
                                  {"value", value ? OutJson(secret ? "(set)" : *value) : OutJson(nullptr)},
                                  {"meaning", row.meaning}});
  }
  return out;
}

void print(const OutJson& found) {
  std::printf("device    %s, %d threads, torch's CPU code %s\n", found["device"].get<std::string>().c_str(),
              found["threads"].get<int>(), found["cpu_capability"].get<std::string>().c_str());
  std::printf("torch     %s\n", found["torch"].get<std::string>().c_str());
  const OutJson& folder = found["packages_folder"];
  std::printf("packages  %s\n\n", (folder.is_null() ? found["packages_reason"] : folder).get<std::string>().c_str());
  Table variants({"package", "variant", "verdict"});
  for (const auto& row : found["variants"]) variants.row({row["package"], row["variant"], row["verdict"]});
  std::printf("%s\n", variants.text().c_str());
  Table environment({"variable", "value", "meaning"});
  for (const auto& row : found["environment"]) {
    environment.row({row["name"], row["value"].is_null() ? "-" : row["value"].get<std::string>(), row["meaning"]});
  }
  std::printf("%s", environment.text().c_str());
}

}  // namespace

void add_env(CLI::App& app) {
  auto* verb =
      app.add_subcommand("env", "Show device, torch, kernel variants accepted here and why, and every variable");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "Print JSON");
  verb->callback([json] {
    const OutJson found = gather();
    if (*json) {
      std::printf("%s\n", found.dump(2).c_str());
    } else {
      print(found);
    }
  });
}

}  // namespace hotswap
