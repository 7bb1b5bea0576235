// The digests of a variant's files, as metadata.json records them: base64 of the sha256 (or sha512) of each file's
// bytes, links followed. Left out: metadata.json and metadata.json.sigstore at the top, __pycache__, *.pyc.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hotswap/hub/package/files_in_memory.h"
#include "hotswap/hub/package/metadata.h"

namespace hotswap {

// Of all files in the folder as they are now. Error where one can not be read, or is a link to a folder or to nothing.
FileDigests hash_variant(const std::filesystem::path& folder, const std::string& algorithm = "sha256");

// The differences in the order of Python's library: the algorithm, then missing and differing files by name, then
// unknown ones. Empty: none.
std::vector<std::string> compare_digests(const FileDigests& expected, const FileDigests& got);

// One Error that lists every difference.
void verify_digests(const std::filesystem::path& folder, const FileDigests& expected, const FilesInMemory& files = {});

// Writes the digests of all files into the folder's metadata.json; its other keys stay. Returns their number.
size_t write_digests(const std::filesystem::path& folder, const std::string& algorithm = "sha256");

}  // namespace hotswap
