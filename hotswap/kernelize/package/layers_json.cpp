#include "hotswap/kernelize/package/layers_json.h"

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/kernelize/contract/contract.h"
#include "hotswap/layers/weight.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

void want(bool ok, const std::string& wanted, const Json& at, const std::string& got) {
  if (ok) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = wanted + " at " + at.where(),
               .got = "'" + shown(got) + "'",
               .next = "rebuild the package"});
}

// The capabilities that this object names; the others stay as they are.
void read_capabilities(const Json& json, int64_t schema, Capabilities& caps) {
  if (schema == 1) {
    json.only({"backward", "capture", "deterministic", "dtypes"});
  } else {
    json.only({"backward", "capture", "deterministic", "dtypes", "features", "needs_host_sync", "numbers", "weights"});
  }
  caps.backward = json.get("backward", caps.backward);
  caps.capture = json.get("capture", caps.capture);
  caps.deterministic = json.get("deterministic", caps.deterministic);
  caps.needs_host_sync = json.get("needs_host_sync", caps.needs_host_sync);
  want(!caps.capture || !caps.needs_host_sync, "at most one of capture and needs_host_sync", json, "both");
  if (const auto dtypes = json.find("dtypes")) {
    caps.dtypes.clear();
    for (const Json& dtype : dtypes->elements()) {
      const auto name = dtype.as<std::string>();
      want(name == "float64" || name == "float32" || name == "float16" || name == "bfloat16",
           "a dtype out of float64, float32, float16, bfloat16", dtype, name);
      caps.dtypes.insert(name);
    }
  }
  if (const auto features = json.find("features")) {
    caps.features.clear();
    for (const Json& feature : features->elements()) caps.features.insert(feature.as<std::string>());
  }
  if (const auto weights = json.find("weights")) {
    caps.weights.clear();
    for (const Json& weight : weights->elements()) {
      const auto name = weight.as<std::string>();
      want(weight_format_of(name).has_value(), cat("a weight format out of ", weight_format_names()), weight, name);
      caps.weights.insert(name);
    }
  }
  if (const auto numbers = json.find("numbers")) {
    caps.numbers.clear();
    for (const auto& [name, list] : numbers->items()) {
      for (const Json& entry : list.elements()) caps.numbers[name].add(entry);
    }
  }
}

// Names of before, in packages that are built.
std::string role_of(const std::string& name) {
  static const std::map<std::string, std::string> renamed = {{"largest", "argmax"},
                                                             {"backward_again", "backward_recompute"}};
  const auto found = renamed.find(name);
  return found == renamed.end() ? name : found->second;
}

// The formats that the layer's kernels take, where it does not list them.
void default_weights(const Contract& contract, Capabilities& caps) {
  if (!caps.weights.empty()) return;
  caps.weights = contract.weights;
  if (caps.features.contains("packed")) caps.weights.insert(kPackedFormats.begin(), kPackedFormats.end());
}

// A name that the contract does not know would never be asked for: it is misspelt.
void check_names(const Json& layer, const Contract& contract, const Capabilities& caps) {
  const auto known = [&](const std::set<std::string>& names, const char* what, const std::string& name) {
    want(names.contains(name), cat(what, " of ", contract.name, " (", names.empty() ? "it has none" : join(names), ")"),
         layer, name);
  };
  for (const std::string& feature : caps.features) known(contract.features, "a feature", feature);
  for (const auto& [name, numbers] : caps.numbers) known(contract.numbers, "numbers", name);
}

LayerEntry read_layer(const Json& json, int64_t schema, LayerEntry layer) {
  json.only({"contract", "ops", "capabilities"});
  layer.contract = layer.contract.empty() ? json.at<std::string>("contract") : json.get("contract", layer.contract);
  const Contract* contract = find_contract(layer.contract);
  if (contract == nullptr) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a contract that this hotswap knows at ", json.where(), ": ", join(contract_names())),
                 .got = "'" + layer.contract + "'",
                 .next = "use versions of hotswap and of the package that match"});
  }
  const Json ops = json.child("ops");
  for (const auto& [name_of_role, op] : ops.items()) {
    const std::string role = role_of(name_of_role);
    want(contract->roles.contains(role), cat("a role of ", layer.contract), op, role);
    const auto name = op.as<std::string>();
    want(is_identifier(name), "an op's name", op, name);
    layer.ops[role] = name;
  }
  if (const auto caps = json.find("capabilities")) read_capabilities(*caps, schema, layer.capabilities);
  check_names(json, *contract, layer.capabilities);
  default_weights(*contract, layer.capabilities);
  for (const auto& [role, schema] : contract->roles) {
    if (!schema.optional && (role == "forward" || layer.capabilities.backward)) ops.at<std::string>(role);
  }
  if (layer.capabilities.backward) {  // what it promises must be there: of "varlen_forward" too
    for (const auto& [role, op] : layer.ops) {
      if (!role.ends_with("forward")) continue;
      ops.at<std::string>(role + "_train");
      ops.at<std::string>(role.substr(0, role.size() - std::string("forward").size()) + "backward");
    }
  }
  return layer;
}

StandIn read_stand_in(const Json& json, const PackageLayers& package) {
  auto text = json.as<std::string>();
  std::string ours;
  if (const size_t equals = text.rfind('='); equals != text.npos) {
    ours = text.substr(equals + 1);
    text.resize(equals);
  }
  const KernelRef ref(text);
  want(!ref.is_path() && !ref.stock() && !ref.layer().empty(), "'org/repo:Layer' or 'org/repo:Layer=OurLayer'", json,
       text);
  StandIn result{ref.repo(), ref.layer(), ours.empty() ? ref.layer() : ours};
  want(package.layers.contains(result.our_layer), "a layer of this package", json, result.our_layer);
  return result;
}

// What every layer inherits that does not say otherwise.
LayerEntry read_defaults(const Json& json, int64_t schema) {
  LayerEntry defaults;
  const auto given = json.find("defaults");
  if (!given) return defaults;
  given->only({"contract", "capabilities"});
  defaults.contract = given->get<std::string>("contract", "");
  if (const auto caps = given->find("capabilities")) read_capabilities(*caps, schema, defaults.capabilities);
  return defaults;
}

// {"kernels-community/flash-attn3": "kernels-community/flash-attn2"}: what stands in for the second stands in for the
// first.
void read_aliases(const Json& json, PackageLayers& package) {
  const std::vector<StandIn> named = package.stands_in_for;
  for (const auto& [alias, repo] : json.items()) {
    const auto name = repo.as<std::string>();
    want(is_repo_id(alias), "a repository's name, org/repo", repo, alias);
    bool known = false;
    for (const StandIn& entry : named) {
      if (!same_repo(entry.repo, name)) continue;
      package.stands_in_for.push_back({alias, entry.their_layer, entry.our_layer});
      known = true;
    }
    want(known, "a repository that stands_in_for names", repo, name);
  }
}

// {"kernels-community/activation": 1}: what stands in for it answers for its versions up to that one.
void read_versions(const Json& json, PackageLayers& package) {
  for (const auto& [repo, version] : json.items()) {
    bool known = false;
    for (StandIn& entry : package.stands_in_for) {
      if (!same_repo(entry.repo, repo)) continue;
      entry.version = version.as<int64_t>();
      known = true;
    }
    want(known, "a repository that stands_in_for or aliases name", version, repo);
  }
}

}  // namespace

std::string read_layers_text(const fs::path& folder) {
  const fs::path file = folder / "layers.json";
  if (fs::exists(file)) return read_file(file);
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("layers.json in ", folder.string()),
               .got = "a package that does not declare which layers its ops serve",
               .next = "name it in a kernel mapping: some such packages have an adapter"});
}

PackageLayers parse_layers(const std::string& text, const fs::path& file) {
  const Json json = Json::parse(text, file.string());
  const auto schema = json.at<int64_t>("schema");
  want(schema == 1 || schema == 2, "schema 1 or 2", json.child("schema"), std::to_string(schema));
  if (schema == 1) {
    json.only({"schema", "layers", "stands_in_for"});
  } else {
    json.only({"schema", "defaults", "layers", "stands_in_for", "aliases", "versions"});
  }
  const LayerEntry defaults = schema == 1 ? LayerEntry() : read_defaults(json, schema);
  PackageLayers package;
  std::vector<std::pair<std::string, Json>> same;  // "Silu": "SiLU"
  for (const auto& [name, layer] : json.child("layers").items()) {
    want(is_identifier(name), "a layer's name", layer, name);
    if (schema > 1 && layer.is_string()) {
      same.emplace_back(name, layer);
    } else {
      package.layers[name] = read_layer(layer, schema, defaults);
    }
  }
  std::map<std::string, LayerEntry> copies;  // of layers that are written out, and of no copies
  for (const auto& [name, layer] : same) {
    const auto of = package.layers.find(layer.as<std::string>());
    want(of != package.layers.end(), "the name of a layer that is written out", layer, layer.as<std::string>());
    copies[name] = of->second;
  }
  package.layers.merge(copies);
  if (const auto list = json.find("stands_in_for")) {
    for (const Json& entry : list->elements()) package.stands_in_for.push_back(read_stand_in(entry, package));
  }
  if (const auto aliases = json.find("aliases")) read_aliases(*aliases, package);
  if (const auto versions = json.find("versions")) read_versions(*versions, package);
  return package;
}

}  // namespace hotswap
