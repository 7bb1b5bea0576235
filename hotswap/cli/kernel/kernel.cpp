#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/cli/kernel/hub.h"
#include "hotswap/cli/print/table.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/kernelize/foreign/foreign.h"
#include "hotswap/kernelize/package/package.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

std::vector<std::string> layer_names(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : manifest.layers) names.push_back(name);
  return names;
}

void list_packages(bool json) {
  const auto folder = bundled_folder();
  if (!folder) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "a folder of kernel packages",
                 .got = folder.why(),
                 .next = "build them, or set HOTSWAP_PACKAGES"});
  }
  if (json) {
    OutJson out = OutJson::array();
    for (const Manifest& m : bundled_packages()) {
      out.push_back({{"name", m.name},
                     {"version", m.version},
                     {"variant", m.variant},
                     {"layers", layer_names(m)},
                     {"digest", m.digest},
                     {"path", m.folder.string()}});
    }
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  Table table({"package", "version", "variant", "layers"});
  for (const Manifest& m : bundled_packages()) {
    table.row({m.name, cat(m.version), m.variant, join(layer_names(m))});
  }
  std::printf("%s", table.text().c_str());
}

// A package by the name of a bundled one, or by its folder.
Manifest find_package(const std::string& name) {
  if (std::filesystem::is_directory(name)) {
    const auto variant = find_variant(name, "cpu");
    if (!variant)
      throw Error({.kind = ErrorKind::kNotFound,
                   .wanted = "a kernel package for this machine",
                   .got = variant.why(),
                   .next = "build it here"});
    return read_package(*variant, bundled_packages());
  }
  std::vector<std::string> known;
  for (Manifest& m : bundled_packages()) {
    if (m.name == name) return std::move(m);
    known.push_back(m.name);
  }
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("a bundled package (", join(known), ") or a package's folder"),
               .got = "'" + name + "'",
               .next = "run `hotswap kernel list`"});
}

OutJson numbers_json(const Capabilities& can) {
  OutJson out = OutJson::object();
  for (const auto& [name, numbers] : can.numbers) out[name] = numbers.entries();
  return out;
}

OutJson layers_json(const Manifest& manifest) {
  OutJson layers = OutJson::object();
  for (const auto& [name, entry] : manifest.layers) {
    const Capabilities& can = entry.capabilities;
    layers[name] = {{"contract", entry.contract},
                    {"ops", entry.ops},
                    {"capabilities",
                     {{"backward", can.backward},
                      {"capture", can.capture},
                      {"deterministic", can.deterministic},
                      {"dtypes", can.dtypes},
                      {"features", can.features},
                      {"numbers", numbers_json(can)},
                      {"weights", can.weights}}}};
  }
  return layers;
}

// "head_dims 64, 80-128"
std::string numbers_text(const Capabilities& can) {
  std::vector<std::string> each;
  for (const auto& [name, numbers] : can.numbers) each.push_back(cat(name, " ", join(numbers.entries())));
  return join(each, "; ");
}

void show_package(const std::string& name, bool json) {
  const Manifest m = find_package(name);
  verify_digest(m);
  if (json) {
    OutJson stands_in = OutJson::array();
    for (const StandIn& s : m.stands_in_for) stands_in.push_back(cat(s.repo, ":", s.their_layer, "=", s.our_layer));
    const OutJson out = {{"path", m.folder.string()},
                         {"name", m.name},
                         {"version", m.version},
                         {"license", m.license},
                         {"upstream", m.upstream.empty() ? OutJson(nullptr) : OutJson(m.upstream)},
                         {"source", m.source.empty() ? OutJson(nullptr) : OutJson(m.source)},
                         {"python_depends", m.python_depends},
                         {"backends", OutJson::array({m.backend})},
                         {"variant", m.variant},
                         {"id", m.id},
                         {"digest", m.digest},
                         {"layers", layers_json(m)},
                         {"stands_in_for", stands_in}};
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  std::printf("%s, version %lld, %s\n", m.name.c_str(), static_cast<long long>(m.version), m.license.c_str());
  std::printf("path     %s\nid       %s\ndigest   %s (verified)\n\n", m.folder.c_str(), m.id.c_str(), m.digest.c_str());
  Table table(
      {"layer", "contract", "backward", "capture", "deterministic", "dtypes", "features", "numbers", "weights"});
  const auto yes = [](bool b) { return std::string(b ? "yes" : "no"); };
  for (const auto& [layer, entry] : m.layers) {
    const Capabilities& can = entry.capabilities;
    table.row({layer, entry.contract, yes(can.backward), yes(can.capture), yes(can.deterministic), join(can.dtypes),
               join(can.features), numbers_text(can), join(can.weights)});
  }
  std::printf("%s", table.text().c_str());
  if (m.stands_in_for.empty()) return;
  std::printf("\nstands in for\n");
  for (const StandIn& s : m.stands_in_for) {
    std::printf("  %s:%s -> %s\n", s.repo.c_str(), s.their_layer.c_str(), s.our_layer.c_str());
  }
}

}  // namespace

void add_kernel(CLI::App& app) {
  auto* verb = app.add_subcommand("kernel", "Kernel packages: make, check, install, fetch, lock, verify, measure");
  verb->require_subcommand(1);
  struct Flags {
    bool json = false;
    std::string name, revision;
    std::optional<int64_t> version;
  };
  auto flags = std::make_shared<Flags>();

  auto* list = verb->add_subcommand("list", "The bundled packages and their layers");
  list->add_flag("--json", flags->json, "Print JSON");
  list->callback([flags] { list_packages(flags->json); });

  auto* info = verb->add_subcommand("info", "One package: layers, contracts, capabilities, digest");
  info->add_option("package", flags->name,
                   "Name of a bundled package, a package's folder, or org/name[@revision] on the Hub")
      ->required();
  auto* revision = info->add_option("--revision", flags->revision, "Branch, tag or commit on the Hub");
  info->add_option("--version", flags->version, "Version on the Hub; without either: the newest")->excludes(revision);
  info->add_flag("--json", flags->json, "Print JSON");
  info->callback([flags] {
    const bool of_hub = !std::filesystem::is_directory(flags->name) && flags->name.find('/') != std::string::npos;
    if (of_hub) {
      show_hub_kernel({flags->name, {.version = flags->version, .revision = flags->revision}}, flags->json);
    } else if (flags->version || !flags->revision.empty()) {
      throw usage_error("--version and --revision are for repositories of the Hub");
    } else {
      show_package(flags->name, flags->json);
    }
  });
  add_kernel_checks(*verb);
  add_kernel_authoring(*verb);
  add_kernel_hub(*verb);
  add_kernel_lock(*verb);
  add_kernel_bench(*verb);
}

}  // namespace hotswap
