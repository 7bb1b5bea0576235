#include "hotswap/kernelize/manifest.h"

#include <algorithm>
#include <regex>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/sha256.h"
#include "hotswap/kernelize/contracts.h"
#include "hotswap/hub/kernel_ref.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// `form` is a literal: compiled once, since compiling a pattern costs more than all the rest of reading a package.
bool matches(const std::string& text, const char* form) {
  thread_local std::map<const char*, std::regex> compiled;
  return std::regex_match(text, compiled.try_emplace(form, form).first->second);
}

void want(bool ok, const std::string& wanted, const Json& at, const std::string& got) {
  if (!ok) throw Error({.wanted = wanted + " at " + at.where(), .got = "'" + got + "'", .next = "rebuild the package"});
}

// A digest names files inside the folder, by paths that cannot leave it.
void check_inside(const std::string& name, const Json& at) {
  const fs::path path(name);
  bool ok = !name.empty() && path.is_relative() && name.find('\\') == name.npos && name.find('\0') == name.npos;
  for (const auto& part : path) ok = ok && part != ".." && part != "." && !part.empty();
  want(ok, "a path inside the package", at, name);
}

void read_metadata(Manifest& m) {
  const fs::path file = m.folder / "metadata.json";
  const std::string text = read_file(file);
  m.digest = "sha256:" + to_hex(sha256({reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
  const Json json = Json::parse(text, file.string());
  m.name = json.at<std::string>("name");
  want(matches(m.name, "[a-z][-a-z0-9]*[a-z0-9]"), "a package name as [a-z][-a-z0-9]*[a-z0-9]", json.child("name"),
       m.name);
  m.id = json.at<std::string>("id");
  // It becomes a file name and a namespace of ops.
  want(matches(m.id, "[A-Za-z_][A-Za-z0-9_]{0,127}"), "an identifier", json.child("id"), m.id);
  m.version = json.at<int64_t>("version");
  want(m.version >= 0, "a version >= 0", json.child("version"), std::to_string(m.version));
  m.license = json.at<std::string>("license");
  json.at<std::vector<std::string>>("python-depends");
  m.backend = json.child("backend").at<std::string>("type");
  want(matches(m.backend, "cann|cpu|cuda|metal|neuron|rocm|tpu|xpu"),
       "a backend out of cann, cpu, cuda, metal, neuron, rocm, tpu, xpu", json.child("backend").child("type"),
       m.backend);

  const Json digest = json.child("digest");
  const auto algorithm = digest.at<std::string>("algorithm");
  want(algorithm == "sha256", "the digest algorithm sha256", digest.child("algorithm"), algorithm);
  for (const auto& [name, value] : digest.child("files").items()) {
    check_inside(name, value);
    const auto hash = value.as<std::string>();
    want(matches(hash, "[A-Za-z0-9+/]{43}="), "the base64 of a sha256", value, hash);
    m.files[name] = hash;
  }
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
    want(matches(name, "float(64|32|16)|bfloat16"), "a dtype out of float64, float32, float16, bfloat16", dtype, name);
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
    want(matches(name, "[A-Za-z_][A-Za-z0-9_]*"), "an op's name", op, name);
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
    throw Error({.wanted = "layers.json in " + m.folder.string(),
                 .got = "a package without it: one for Python only",
                 .next = "use a package that says which layers its ops serve"});
  }
  const Json json = Json::read(file);
  json.only({"schema", "layers", "stands_in_for"});
  const auto schema = json.at<int64_t>("schema");
  want(schema == 1, "schema 1", json.child("schema"), std::to_string(schema));
  for (const auto& [name, layer] : json.child("layers").items()) {
    want(matches(name, "[A-Za-z_][A-Za-z0-9_]*"), "a layer's name", layer, name);
    m.layers[name] = read_layer(layer);
  }
  if (const auto list = json.find("stands_in_for")) {
    for (const Json& entry : list->elements()) m.stands_in_for.push_back(read_stand_in(entry, m));
  }
}

bool outside_digest(const std::string& name) {
  return name == "metadata.json" || name == "metadata.json.sigstore" || name.ends_with(".pyc") ||
         name.find("__pycache__") != name.npos;
}

}  // namespace

const std::string* Manifest::layer_named(const std::string& name, const std::string& repo) const {
  if (const auto own = layers.find(name); own != layers.end()) return &own->first;
  for (const StandIn& entry : stands_in_for) {
    if (entry.their_layer == name && same_repo(entry.repo, repo)) return &entry.our_layer;
  }
  return nullptr;
}

Manifest read_manifest(const fs::path& variant_folder) {
  Manifest m;
  m.folder = fs::absolute(variant_folder).lexically_normal();
  if (!m.folder.has_filename()) m.folder = m.folder.parent_path();  // "variant/"
  m.variant = m.folder.filename().string();
  read_metadata(m);
  read_layers(m);
  const std::string library = m.library().filename().string();
  for (const std::string& needed : {std::string("layers.json"), library}) {
    if (!m.files.contains(needed)) {
      throw Error({.wanted = cat("the digest of '", needed, "' in ", (m.folder / "metadata.json").string()),
                   .got = "none",
                   .next = "rebuild the package"});
    }
  }
  return m;
}

void verify_digest(const Manifest& m) {
  std::vector<std::string> wrong;
  for (const auto& [name, expected] : m.files) {
    const fs::path file = m.folder / name;
    if (!fs::is_regular_file(file)) {
      wrong.push_back("Missing file: " + name);
      continue;
    }
    if (const auto got = to_base64(sha256_file(file)); got != expected) {
      wrong.push_back(cat("File hash mismatch for ", name, ": expected: ", expected, ", got: ", got));
    }
  }
  std::vector<std::string> unknown;
  for (const auto& entry : fs::recursive_directory_iterator(m.folder)) {
    const auto name = entry.path().lexically_relative(m.folder).generic_string();
    if (!entry.is_directory() && !m.files.contains(name) && !outside_digest(name)) unknown.push_back(name);
  }
  std::sort(unknown.begin(), unknown.end());
  for (const auto& name : unknown) wrong.push_back("Unknown file: " + name);
  if (wrong.empty()) return;
  throw Error({.wanted = cat("the files of ", m.folder.string(), " as its metadata.json lists them"),
               .got = join(wrong, "; "),
               .next = "get the package anew; nothing of it was run"});
}

}  // namespace hotswap
