#include "hotswap/kernelize/package/manifest.h"

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/sha256.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/kernelize/bind/contract.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

void want(bool ok, const std::string& wanted, const Json& at, const std::string& got) {
  if (ok) return;
  throw Error({.wanted = wanted + " at " + at.where(), .got = "'" + shown(got) + "'", .next = "rebuild the package"});
}

void parse_metadata_of(Manifest& m) {
  const fs::path file = m.folder / "metadata.json";
  const std::string text = read_file(file);
  static_cast<KernelMetadata&>(m) = parse_metadata(text, file.string());
  m.digest = "sha256:" + to_hex(sha256({reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
  if (m.checked && !m.digests) {
    throw Error({.wanted = "key 'digest' in " + file.string(),
                 .got = "a package whose files nothing vouches for",
                 .next = "run `hotswap kernel hash` on it if it is yours, or get another"});
  }
}

void need_digest(const Manifest& m, const std::string& file) {
  if (m.digests->files.contains(file)) return;
  throw Error({.wanted = cat("the digest of '", file, "' in ", (m.folder / "metadata.json").string()),
               .got = "none",
               .next = "rebuild the package"});
}

Capabilities read_capabilities(const Json& json) {
  json.only({"backward", "capture", "deterministic", "dtypes"});
  Capabilities caps{.backward = json.get("backward", false),
                    .capture = json.get("capture", false),
                    .deterministic = json.get("deterministic", false),
                    .dtypes = {}};
  const auto dtypes = json.find("dtypes");
  if (!dtypes) return caps;
  for (const Json& dtype : dtypes->elements()) {
    const auto name = dtype.as<std::string>();
    want(name == "float64" || name == "float32" || name == "float16" || name == "bfloat16",
         "a dtype out of float64, float32, float16, bfloat16", dtype, name);
    caps.dtypes.insert(name);
  }
  return caps;
}

LayerEntry read_layer(const Json& json) {
  json.only({"contract", "ops", "capabilities"});
  LayerEntry layer;
  layer.contract = json.at<std::string>("contract");
  const Contract* contract = find_contract(layer.contract);
  if (contract == nullptr) {
    throw Error({.wanted = cat("a contract that this hotswap knows at ", json.child("contract").where(), ": ",
                               join(contract_names())),
                 .got = "'" + layer.contract + "'",
                 .next = "use a package or a hotswap of the other's time"});
  }
  const Json ops = json.child("ops");
  for (const auto& [role, op] : ops.items()) {
    want(contract->roles.contains(role), cat("a role of ", layer.contract), op, role);
    const auto name = op.as<std::string>();
    want(is_identifier(name), "an op's name", op, name);
    layer.ops[role] = name;
  }
  if (const auto caps = json.find("capabilities")) layer.capabilities = read_capabilities(*caps);
  ops.at<std::string>("forward");
  if (layer.capabilities.backward) {  // what it promises must be there
    ops.at<std::string>("forward_train");
    ops.at<std::string>("backward");
  }
  return layer;
}

StandIn read_stand_in(const Json& json, const Manifest& m) {
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
  want(m.layers.contains(result.our_layer), "a layer of this package", json, result.our_layer);
  return result;
}

void read_layers(Manifest& m) {
  const fs::path file = m.folder / "layers.json";
  if (!fs::exists(file)) {
    throw Error({.wanted = cat("layers.json in ", m.folder.string()),
                 .got = "a package that says not which layers its ops serve",
                 .next = "name it in a kernel mapping: some such packages have an adapter"});
  }
  const Json json = Json::read(file);
  json.only({"schema", "layers", "stands_in_for"});
  const auto schema = json.at<int64_t>("schema");
  want(schema == 1, "schema 1", json.child("schema"), std::to_string(schema));
  for (const auto& [name, layer] : json.child("layers").items()) {
    want(is_identifier(name), "a layer's name", layer, name);
    m.layers[name] = read_layer(layer);
  }
  if (const auto list = json.find("stands_in_for")) {
    for (const Json& entry : list->elements()) m.stands_in_for.push_back(read_stand_in(entry, m));
  }
}

}  // namespace

fs::path Manifest::library() const {
  const std::string file = id + ".abi3.so";
  std::error_code code;
  const fs::path older = folder / python_name() / file;
  return !fs::exists(folder / file, code) && fs::exists(older, code) ? older : folder / file;
}

const std::string* Manifest::layer_named(const std::string& name, const std::string& repo) const {
  if (const auto own = layers.find(name); own != layers.end()) return &own->first;
  for (const StandIn& entry : stands_in_for) {
    if (entry.their_layer == name && same_repo(entry.repo, repo)) return &entry.our_layer;
  }
  return nullptr;
}

Manifest read_metadata(const fs::path& variant_folder, bool checked) {
  Manifest m;
  m.checked = checked;
  m.folder = fs::absolute(variant_folder).lexically_normal();
  if (!m.folder.has_filename()) m.folder = m.folder.parent_path();  // "variant/"
  m.variant = m.folder.filename().string();
  parse_metadata_of(m);
  return m;
}

Manifest read_manifest(const fs::path& variant_folder, bool checked) {
  Manifest m = read_metadata(variant_folder, checked);
  read_layers(m);
  if (checked) need_digest(m, "layers.json");
  need_library_digest(m);
  return m;
}

void need_library_digest(const Manifest& m) {
  if (m.checked) need_digest(m, m.library().lexically_relative(m.folder).generic_string());
}

void verify_digest(const Manifest& m) {
  if (m.checked) verify_digests(m.folder, *m.digests);
}

}  // namespace hotswap
