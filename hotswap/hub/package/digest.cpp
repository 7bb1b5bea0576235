#include "hotswap/hub/package/digest.h"

#include <openssl/evp.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/sha256.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

bool left_out(const std::string& name) {
  if (name == "metadata.json" || name == "metadata.json.sigstore" || name.ends_with(".pyc")) return true;
  const auto parts = split(name, '/');
  return std::find(parts.begin(), parts.end(), "__pycache__") != parts.end();
}

// Files by their path below the folder. What is neither a file nor a folder (a link to nothing, a link to a folder,
// which would bring in what nobody hashed, a pipe) is listed as well: nothing may stand beside the digest.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink()) continue;
    const auto name = entry.path().lexically_relative(folder).generic_string();
    if (!left_out(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string hash_bytes(std::span<const uint8_t> bytes, const std::string& algorithm) {
  if (algorithm == "sha256") return to_base64(sha256(bytes));
  std::array<uint8_t, 64> hash{};
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), hash.data(), &size, EVP_sha512(), nullptr) != 1) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "SHA-512 from OpenSSL",
                 .got = "a failure",
                 .next = "check the OpenSSL installation"});
  }
  return to_base64(hash);
}

std::string hash_file(const fs::path& file, const std::string& algorithm) {
  return hash_bytes(MappedFile(file).bytes(), algorithm);
}

void check_algorithm(const std::string& algorithm) {
  if (algorithm == "sha256" || algorithm == "sha512") return;
  throw Error(
      {.kind = ErrorKind::kUnsupported,
       .wanted = "the digest algorithm sha256 or sha512",
       .got = "'" + shown(algorithm) + "'",
       .next = "write metadata.json with a kernel-builder that uses one of these, or run `hotswap kernel hash`"});
}

std::string upper(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

}  // namespace

FileDigests hash_variant(const fs::path& folder, const std::string& algorithm) {
  check_algorithm(algorithm);
  FileDigests digests{.algorithm = algorithm, .files = {}};
  for (const std::string& name : names_in(folder)) {
    if (!fs::is_regular_file(folder / name)) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = "files in " + folder.string(),
                   .got = "'" + name + "', which is a link to a folder or to nothing, or no file at all",
                   .next = "remove it"});
    }
    digests.files[name] = hash_file(folder / name, algorithm);
  }
  return digests;
}

std::vector<std::string> compare_digests(const FileDigests& expected, const FileDigests& got) {
  if (expected.algorithm != got.algorithm) {
    return {cat("Algorithm mismatch: expected: ", upper(expected.algorithm), ", got: ", upper(got.algorithm))};
  }
  std::vector<std::string> wrong;
  for (const auto& [name, hash] : expected.files) {
    const auto found = got.files.find(name);
    if (found == got.files.end()) {
      wrong.push_back("Missing file: " + name);
    } else if (found->second != hash) {
      wrong.push_back(cat("File hash mismatch for ", name, ": expected: ", hash, ", got: ", found->second));
    }
  }
  for (const auto& [name, hash] : got.files) {
    if (!expected.files.contains(name)) wrong.push_back("Unknown file: " + name);
  }
  return wrong;
}

void verify_digests(const fs::path& folder, const FileDigests& expected, const FilesInMemory& files) {
  check_algorithm(expected.algorithm);
  FileDigests got{.algorithm = expected.algorithm, .files = {}};
  for (const std::string& name : names_in(folder)) {
    // Only what the digest names is read: a name alone condemns the rest.
    const bool known = expected.files.contains(name) && fs::is_regular_file(folder / name);
    got.files[name] = known && !files.contains(name) ? hash_file(folder / name, expected.algorithm) : "no file";
  }
  for (const auto& [name, bytes] : files) {
    if (!left_out(name)) got.files[name] = hash_bytes(bytes, expected.algorithm);
  }
  const std::vector<std::string> wrong = compare_digests(expected, got);
  if (wrong.empty()) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("the files of ", folder.string(), " as its metadata.json lists them"),
               .got = join(wrong, "; "),
               .next = "download the package again; nothing of it was run"});
}

size_t write_digests(const fs::path& folder, const std::string& algorithm) {
  const fs::path file = folder / "metadata.json";
  nlohmann::ordered_json json = Json::read(file).raw();
  parse_metadata(json.dump(), file.string());
  const FileDigests digests = hash_variant(folder, algorithm);
  json["digest"] = {{"algorithm", digests.algorithm}, {"files", digests.files}};
  write_file(file, json.dump(2) + "\n");
  return digests.files.size();
}

}  // namespace hotswap
