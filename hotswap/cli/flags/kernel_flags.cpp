#include <algorithm>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/usage_error.h"
#include "hotswap/models/attn_implementation.h"

namespace hotswap {
namespace {

KernelRef ref_from(const Json& value) {
  if (value.is_string()) return KernelRef(value.as<std::string>());
  const auto parts = value.is_array() ? value.elements() : std::vector<Json>();
  if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_object()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat(value.where(), " as \"org/repo:Layer\" or [\"org/repo:Layer\", {\"version\": 1}]"),
                 .got = value.raw().dump(),
                 .next = "docs/design.md lists the forms"});
  }
  parts[1].only({"version", "revision", "trust_remote_code", "locked"});
  KernelRefOptions options;
  if (parts[1].has("version")) options.version = parts[1].at<int64_t>("version");
  options.revision = parts[1].get<std::string>("revision", "");
  options.trust = parts[1].get<bool>("trust_remote_code", false);
  options.locked = parts[1].get<bool>("locked", false);
  return {parts[0].as<std::string>(), options};
}

// One kernel for every mode, or {"INFERENCE": kernel, "TRAINING|TORCH_COMPILE": kernel}.
ModeKernels kernels_from(const Json& value) {
  if (!value.is_object()) return ref_from(value);
  ModeKernels kernels;
  for (const auto& [mode, ref] : value.items()) kernels.add(Mode::parse(mode), ref_from(ref));
  return kernels;
}

KernelChoice choice_from(const Json& value) {
  if (!value.is_object()) return KernelChoice(ref_from(value));
  std::vector<std::pair<DeviceKey, ModeKernels>> by_device;
  for (const auto& [device, ref] : value.items()) by_device.emplace_back(DeviceKey(device), kernels_from(ref));
  return KernelChoice(std::move(by_device));
}

}  // namespace

void add_kernel_flags(CLI::App& verb, KernelFlags& flags) {
  verb.add_flag("--use-kernels", flags.use_kernels, "Swap layers for kernels; without more, for the bundled ones");
  verb.add_option("--kernel", flags.kernels,
                  "LAYER=REF, may be repeated: REF is org/repo[@rev][:Layer] of the Hub, a package folder with\n"
                  "--use-local-kernel, or empty to keep the layer stock. Implies --use-kernels")
      ->type_name("LAYER=REF")
      ->take_all()
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        const auto equals = text.find('=');
        return equals == std::string::npos || equals == 0 ? "expected LAYER=REF, got '" + text + "'" : std::string();
      });
  verb.add_option("--kernel-config", flags.config_file,
                  "JSON file with kernel_mapping, use_local_kernel, inherit_mapping")
      ->check(CLI::ExistingFile);
  verb.add_flag("--use-local-kernel", flags.local, "The REFs of --kernel are /abs/path/of/package:Layer");
  verb.add_flag("--allow-all-kernels", flags.allow_all, "Run kernels of the Hub from any publisher");
  verb.add_option(
          "--project", flags.project,
          "Folder of hotswap.toml and kernels.lock: versions, trusted publishers, locks. Default HOTSWAP_PROJECT")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory);
  verb.add_flag("--strict", flags.strict, "Fail where a layer with a mapping stays stock");
}

KernelConfig kernel_config_from(const Json& json) {
  json.only({"kernel_mapping", "use_local_kernel", "inherit_mapping"});
  KernelConfig config;
  config.use_local_kernel = json.get<bool>("use_local_kernel", false);
  if (json.has("inherit_mapping")) config.inherit_mapping = json.at<bool>("inherit_mapping");
  if (const auto mapping = json.find("kernel_mapping")) {
    for (const auto& [layer, value] : mapping->items()) config.kernel_mapping.emplace_back(layer, choice_from(value));
  }
  return config;
}

void check_one_attention(const ModelFlags& model, const KernelFlags& kernels) {
  const auto config = model.attention.empty() ? std::nullopt : kernel_config_of(kernels);
  if (!config) return;
  const auto& rows = config->kernel_mapping;
  if (std::none_of(rows.begin(), rows.end(), [](const auto& row) { return row.first == kAttentionLayer; })) return;
  throw Error(
      {.kind = ErrorKind::kInvalidArgument,
       .wanted = "one kernel for the attention",
       .got = cat("attn_implementation ", model.attention, " and a row of the kernel mapping for ", kAttentionLayer),
       .next = "drop one of them"});
}

KernelOptions kernel_options_of(const KernelFlags& flags) {
  return {.config = kernel_config_of(flags).value_or(KernelConfig{}),
          .strict = flags.strict,
          .allow_all_kernels = flags.allow_all,
          .project = flags.project};
}

std::optional<KernelConfig> kernel_config_of(const KernelFlags& flags) {
  if (flags.kernels.empty() && flags.config_file.empty()) return std::nullopt;
  KernelConfig config;
  if (!flags.config_file.empty()) config = kernel_config_from(Json::read(flags.config_file));
  if (flags.local) {
    config.use_local_kernel = true;
    // Only the named layers change: the others keep the bundled kernels, as they do beside Hub references.
    if (!config.inherit_mapping) config.inherit_mapping = true;
  }
  std::set<std::string> named;
  for (const std::string& text : flags.kernels) {
    const auto equals = text.find('=');
    if (!named.insert(text.substr(0, equals)).second) {
      throw usage_error("--kernel: expected one kernel for a layer; got two for " + text.substr(0, equals));
    }
    config.kernel_mapping.emplace_back(text.substr(0, equals), KernelChoice(text.substr(equals + 1)));
  }
  return config;
}

}  // namespace hotswap
