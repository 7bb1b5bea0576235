#include "hotswap/hub/package/metadata.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/variant_name.h"

namespace hotswap {
namespace {

void expect_metadata(bool ok, const std::string& wanted, const Json& at, const std::string& got) {
  if (ok) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = wanted + " at " + at.where(),
               .got = "'" + shown(got) + "'",
               .next = "rebuild the package"});
}

bool is_base64(std::string_view text, size_t bytes) {
  const size_t size = (bytes + 2) / 3 * 4, padding = (3 - bytes % 3) % 3;
  if (text.size() != size || text.substr(size - padding) != std::string(padding, '=')) return false;
  return std::all_of(text.begin(), text.end() - static_cast<long>(padding),
                     [](char c) { return is_digit(c) || is_alpha(c) || c == '+' || c == '/'; });
}

FileDigests read_digests(const Json& json) {
  FileDigests digests{.algorithm = json.at<std::string>("algorithm"), .files = {}};
  expect_metadata(digests.algorithm == "sha256" || digests.algorithm == "sha512",
                  "the digest algorithm sha256 or sha512", json.child("algorithm"), digests.algorithm);
  for (const auto& [name, value] : json.child("files").items()) {
    expect_metadata(is_inside(name), "a path inside the package", value, name);
    const auto hash = value.as<std::string>();
    expect_metadata(is_base64(hash, digests.algorithm == "sha256" ? 32 : 64),
                    cat("the base64 of a ", digests.algorithm), value, hash);
    digests.files[name] = hash;
  }
  return digests;
}

KernelDepend read_metadata_depend(const Json& json) {
  json.only({"repo-id", "version", "revision"});
  KernelDepend depend{.repo = json.at<std::string>("repo-id"), .version = std::nullopt, .revision = {}};
  if (json.has("version")) depend.version = json.at<int64_t>("version");
  depend.revision = json.get<std::string>("revision", "");
  expect_metadata(json.has("version") != json.has("revision"), "exactly one of version and revision", json,
                  json.raw().dump());
  expect_metadata(!depend.version || *depend.version >= 0, "a version >= 0", json.child("repo-id"), depend.repo);
  return depend;
}

// {commit, dirty}: both or neither. `sha` is commit's older name.
void read_commit(const Json& json, std::string& commit, bool& dirty) {
  const char* key = json.has("commit") ? "commit" : "sha";
  if (json.has("commit") && json.has("sha")) expect_metadata(false, "one of commit and sha", json, "both");
  if (!json.has(key) && !json.has("dirty")) return;
  commit = json.at<std::string>(key);
  expect_metadata((commit.size() == 40 || commit.size() == 64) && is_hex(commit), "a commit of 40 or 64 hex digits",
                  json.child(key), commit);
  dirty = json.at<bool>("dirty");
}

Provenance read_provenance(const Json& json) {
  Provenance p;
  const Json builder = json.child("kernel-builder");
  p.builder_version = builder.at<std::string>("version");
  read_commit(builder, p.builder_commit, p.builder_dirty);
  if (const auto kernel = json.find("kernel")) {
    read_commit(*kernel, p.kernel_commit, p.kernel_dirty);
    expect_metadata(!p.kernel_commit.empty(), "commit and dirty", *kernel, kernel->raw().dump());
  }
  return p;
}

std::string read_metadata_url(const Json& json, const char* key) {
  auto url = json.get<std::string>(key, "");
  expect_metadata(url.empty() || is_git_url(url), "a git URL (https://..., ssh://..., user@host:path)", json, url);
  return url;
}

}  // namespace

std::string KernelMetadata::python_name() const {
  std::string text = name;
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

std::vector<std::string> KernelMetadata::dirty() const {
  std::vector<std::string> parts;
  if (provenance && provenance->kernel_dirty) parts.emplace_back("kernel source");
  if (provenance && provenance->builder_dirty) parts.emplace_back("kernel-builder");
  return parts;
}

KernelMetadata parse_metadata(std::string_view text, const std::string& where) {
  const Json json = Json::parse(text, where);
  KernelMetadata m;
  m.name = json.at<std::string>("name");
  expect_metadata(is_kernel_name(m.name), "a package name as [a-z][-a-z0-9]*[a-z0-9]", json.child("name"), m.name);
  m.id = json.at<std::string>("id");
  expect_metadata(is_identifier(m.id), "an identifier", json.child("id"), m.id);
  m.version = json.at<int64_t>("version");
  expect_metadata(m.version >= 0, "a version >= 0", json.child("version"), std::to_string(m.version));
  m.license = json.at<std::string>("license");
  m.python_depends = json.at<std::vector<std::string>>("python-depends");
  if (const auto depends = json.find("kernel-depends")) {
    for (const Json& depend : depends->elements()) m.kernel_depends.push_back(read_metadata_depend(depend));
  }
  const Json backend = json.child("backend");
  m.backend = backend.at<std::string>("type");
  expect_metadata(Backend::kind_named(m.backend).has_value(),
                  "a backend out of cann, cpu, cuda, metal, neuron, rocm, tpu, xpu", backend.child("type"), m.backend);
  m.archs = backend.get<std::vector<std::string>>("archs", {});
  m.upstream = read_metadata_url(json, "upstream");
  m.source = read_metadata_url(json, "source");
  if (const auto digest = json.find("digest")) m.digests = read_digests(*digest);
  if (const auto provenance = json.find("provenance")) m.provenance = read_provenance(*provenance);
  return m;
}

std::optional<std::string> python_requirement(const std::string& name, const std::string& backend) {
  struct Row {
    const char *backend, *name, *pip;  // backend: null for all
  };
  static constexpr Row kRows[] = {{nullptr, "einops", "einops"},
                                  {nullptr, "helion", "helion"},
                                  {nullptr, "tvm-ffi", "apache-tvm-ffi"},
                                  {"cuda", "nvidia-cutlass-dsl", "nvidia-cutlass-dsl"},
                                  {"neuron", "nki", "nki"},
                                  {"xpu", "onednn", "onednn-devel"}};
  for (const Row& row : kRows) {
    if (name == row.name && (row.backend == nullptr || backend == row.backend)) return row.pip;
  }
  return std::nullopt;
}

bool is_kernel_name(std::string_view s) {
  const auto low = [](char c) { return c >= 'a' && c <= 'z'; };
  return s.size() >= 2 && s.size() <= 128 && low(s.front()) && s.back() != '-' &&
         std::all_of(s.begin(), s.end(), [&](char c) { return low(c) || is_digit(c) || c == '-'; });
}

bool is_git_url(std::string_view text) {
  if (std::any_of(text.begin(), text.end(), [](char c) { return (c >= 0 && c <= ' ') || c == 127; })) return false;
  if (const size_t scheme = text.find("://"); scheme != text.npos) {
    static constexpr std::string_view kSchemes[] = {"https", "http", "git", "ssh", "git+ssh", "git+https", "git+http"};
    const auto known = std::find(std::begin(kSchemes), std::end(kSchemes), text.substr(0, scheme));
    return known != std::end(kSchemes) && text.size() > scheme + 3 && text[scheme + 3] != '/';
  }
  const size_t at = text.find('@'), colon = text.find(':');
  return at != text.npos && colon != text.npos && at > 0 && at + 1 < colon && colon + 1 < text.size();
}

bool is_inside(std::string_view path) {
  if (path.empty() || path.size() > 4096) return false;
  if (path.find('\\') != path.npos || path.find(':') != path.npos || path.find('\0') != path.npos) return false;
  const auto parts = split(path, '/');
  return std::all_of(parts.begin(), parts.end(),
                     [](const std::string& part) { return !part.empty() && part != "." && part != ".."; });
}

}  // namespace hotswap
