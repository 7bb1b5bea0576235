#include "hotswap/kernelize/package/manifest.h"

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/sha256.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/package/digest.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

void parse_metadata_of(Manifest& m) {
  const fs::path file = m.folder / "metadata.json";
  m.metadata_text = read_file(file);
  static_cast<KernelMetadata&>(m) = parse_metadata(m.metadata_text, file.string());
  m.digest = "sha256:" + to_hex(sha256(as_bytes(m.metadata_text)));
  if (m.checked && !m.digests) {
    throw Error(
        {.kind = ErrorKind::kCorrupt,
         .wanted = "key 'digest' (checksums of the package's files) in " + file.string(),
         .got = "none, so that its files cannot be verified",
         .next = "run `hotswap kernel hash` on the package if you built it; else get a build that has digests"});
  }
}

void need_digest(const Manifest& m, const std::string& file) {
  if (m.digests->files.contains(file)) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("the digest of '", file, "' in ", (m.folder / "metadata.json").string()),
               .got = "none",
               .next = "rebuild the package"});
}

}  // namespace

fs::path Manifest::library() const {
  const std::string file = id + ".abi3.so";
  std::error_code code;
  const fs::path older = folder / python_name() / file;
  return !fs::exists(folder / file, code) && fs::exists(older, code) ? older : folder / file;
}

std::string Manifest::library_name() const { return library().lexically_relative(folder).generic_string(); }

FilesInMemory Manifest::files_in_memory() const {
  FilesInMemory files = {{"metadata.json", as_bytes(metadata_text)}};
  if (!layers_text.empty()) files["layers.json"] = as_bytes(layers_text);
  return files;
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
  m.layers_text = read_layers_text(m.folder);
  static_cast<PackageLayers&>(m) = parse_layers(m.layers_text, m.folder / "layers.json");
  if (checked) need_digest(m, "layers.json");
  need_library_digest(m);
  return m;
}

void need_library_digest(const Manifest& m) {
  if (m.checked) need_digest(m, m.library_name());
}

void verify_digest(const Manifest& m, const FilesInMemory& files) {
  if (m.checked) verify_digests(m.folder, *m.digests, files);
}

void verify_digest(const Manifest& m) { verify_digest(m, m.files_in_memory()); }

}  // namespace hotswap
