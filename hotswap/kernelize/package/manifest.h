// What a built package says of itself, read and checked without running anything of it: metadata.json (kernel-builder's
// format: unknown keys pass) and layers.json (layers_json.h), and the digests of its files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hotswap/hub/package/files_in_memory.h"
#include "hotswap/hub/package/metadata.h"
#include "hotswap/kernelize/package/layers_json.h"

namespace hotswap {

struct Manifest : KernelMetadata, PackageLayers {  // its digests are there, unless nobody checks them
  std::filesystem::path folder;                    // the variant's
  std::string variant;                             // the folder's name
  std::string digest;   // "sha256:<hex>" of metadata.json, which holds the digests of all else
  bool checked = true;  // false: the user's policy takes its files as they are
  // Of a package whose ops are adapted: the namespace that they get, and what registers them there once its library is
  // loaded. Empty and null: its ops serve its layers themselves.
  std::string adapter;
  void (*register_adapter)(const Manifest&) = nullptr;

  const std::string& op_namespace() const { return adapter.empty() ? id : adapter; }
  // <id>.abi3.so in the folder; where older builds put everything, in <folder>/<python_name>/.
  std::filesystem::path library() const;
  std::string library_name() const;        // the same, from the folder on
  std::string metadata_text, layers_text;  // metadata.json and, where it has one, layers.json: as they were read
  FilesInMemory files_in_memory() const;   // these two
  // The layer by this name, or by the name that it has in the repository that this package stands in for. Null: none.
  const std::string* layer_named(const std::string& name, const std::string& repo) const;
};

// Error on anything malformed. Does not read the other files. checked: they must have a digest.
Manifest read_manifest(const std::filesystem::path& variant_folder, bool checked = true);
// The same of metadata.json alone: the manifest has no layers.
Manifest read_metadata(const std::filesystem::path& variant_folder, bool checked = true);
// Error where it is checked and its library has no digest.
void need_library_digest(const Manifest& manifest);

// One Error that lists every file that is missing, differs or is not in the digest; of files in memory, by those
// bytes. Nothing where it is not checked.
void verify_digest(const Manifest& manifest, const FilesInMemory& files);
void verify_digest(const Manifest& manifest);  // with what it was read from in memory

}  // namespace hotswap
