#include "hotswap/base/env.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <cstdio>

#include "hotswap/base/memory.h"
#include "hotswap/cli/print/table.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/kernelize/package/package.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

struct SeenVariant {
  std::string package, variant, verdict, needs;  // needs: what would make it fit
};

// Each variant of each bundled package, with what the variant rules say of it on this machine.
std::vector<SeenVariant> seen_variants(const std::string& device) {
  std::map<std::string, std::vector<VariantCandidate>> by_package;
  for (const Manifest& m : bundled_packages()) by_package[m.name].push_back({m.variant, m.archs});
  std::vector<SeenVariant> seen;
  for (const auto& [package, variants] : by_package) {
    const VariantChoice choice = choose_variant(variants, this_system(device));
    for (const auto& [variant, verdict] : choice.trace) {
      const auto near = std::find_if(choice.nearest.begin(), choice.nearest.end(),
                                     [&wanted = variant](const NearMiss& miss) { return miss.variant == wanted; });
      seen.push_back({package, variant, verdict, near == choice.nearest.end() ? "" : join(near->needs, " and ")});
    }
  }
  return seen;
}

OutJson gather() {
  const std::string device = cuda_available() ? "cuda" : "cpu";
  const System host = this_system(device);
  OutJson out;
  out["device"] = device;
  out["torch"] = TORCH_VERSION;
  out["threads"] = at::get_num_threads();
  out["cpu_capability"] = at::get_cpu_capability();
  out["host"] = {{"cpu", host.cpu},
                 {"os", host.os},
                 {"backend", host.backend.text()},
                 {"cxx11_abi", host.cxx11_abi ? OutJson(*host.cxx11_abi) : OutJson(nullptr)},
                 {"capability", host.capability ? OutJson(host.capability->str()) : OutJson(nullptr)}};
  const auto folder = bundled_folder();
  out["packages_folder"] = folder ? OutJson((*folder).string()) : OutJson(nullptr);
  if (!folder) out["packages_reason"] = folder.why();
  out["variants"] = OutJson::array();
  for (const SeenVariant& seen : seen_variants(device)) {
    out["variants"].push_back(
        {{"package", seen.package}, {"variant", seen.variant}, {"verdict", seen.verdict}, {"needs", seen.needs}});
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
  const OutJson& host = found["host"];
  const OutJson& capability = host["capability"];
  std::printf(
      "variants  of %s-%s-%s%s, for a host without Python: compiled for torch's stable ABI, or for this torch\n",
      host["backend"].get<std::string>().c_str(), host["cpu"].get<std::string>().c_str(),
      host["os"].get<std::string>().c_str(),
      capability.is_null() ? "" : (", compute capability " + capability.get<std::string>()).c_str());
  const OutJson& folder = found["packages_folder"];
  std::printf("packages  %s\n\n", (folder.is_null() ? found["packages_reason"] : folder).get<std::string>().c_str());
  Table variants({"package", "variant", "verdict", "would need"});
  for (const auto& row : found["variants"])
    variants.row({row["package"], row["variant"], row["verdict"], row["needs"]});
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
