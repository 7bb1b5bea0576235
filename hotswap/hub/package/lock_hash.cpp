// The hashes of kernels.lock (lockfile.h), from a tree as the Hub lists it and from files on disk.
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/sha256.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/package/lockfile.h"
#include "hotswap/hub/package/metadata.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// {path below the variant, raw hash}
using Entry = std::pair<std::string, std::string>;

bool is_bytecode(const std::string& path) {
  if (path.ends_with(".pyc")) return true;
  const auto parts = split(path, '/');
  return std::find(parts.begin(), parts.end(), "__pycache__") != parts.end();
}

std::string concat_hash(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end());
  std::string bytes;
  for (const auto& [path, hash] : entries) bytes += path + hash;
  return "sha256-" + to_hex(sha256({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
}

std::string raw(const std::string& hex, const std::string& path) {
  if ((hex.size() != 40 && hex.size() != 64) || !is_hex(hex)) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a hash of 40 or 64 hex digits for ", path),
                 .got = "'" + shown(hex) + "'",
                 .next = "request it from the Hub again"});
  }
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// git's name of a blob: the sha1 of "blob <size>\0" and the bytes.
std::string git_blob(std::span<const uint8_t> content) {
  const std::string head = cat("blob ", content.size(), '\0');
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned size = 0;
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha1(), nullptr) != 1 ||
      EVP_DigestUpdate(context.get(), head.data(), head.size()) != 1 ||
      EVP_DigestUpdate(context.get(), content.data(), content.size()) != 1 ||
      EVP_DigestFinal_ex(context.get(), hash.data(), &size) != 1) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "SHA-1 from OpenSSL",
                 .got = "a failure",
                 .next = "check the OpenSSL installation"});
  }
  return {reinterpret_cast<const char*>(hash.data()), size};
}

bool lfs_by_link(const fs::path& file) {
  const std::string blob = fs::is_symlink(file) ? fs::read_symlink(file).filename().string() : "";
  if ((blob.size() == 40 || blob.size() == 64) && is_hex(blob)) return blob.size() == 64;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a link into the Hub's cache at ", file.string()),
               .got = "a file of its own, of which nothing says whether LFS holds it",
               .next = "verify it in the cache that it was downloaded to"});
}

}  // namespace

std::map<std::string, std::string> variant_hashes(const std::vector<TreeEntry>& tree) {
  std::map<std::string, std::vector<Entry>> entries;
  for (const TreeEntry& file : tree) {
    constexpr std::string_view kBuild = "build/";
    if (!file.path.starts_with(kBuild) || is_bytecode(file.path)) continue;
    const size_t slash = file.path.find('/', kBuild.size());
    if (slash == file.path.npos) continue;
    entries[file.path.substr(kBuild.size(), slash - kBuild.size())].emplace_back(file.path.substr(slash + 1),
                                                                                 raw(file.etag(), file.path));
  }
  std::map<std::string, std::string> hashes;
  for (auto& [variant, files] : entries) hashes[variant] = concat_hash(std::move(files));
  return hashes;
}

std::string hash_locked_variant(const fs::path& folder, const IsLfs& is_lfs, const FilesInMemory& files) {
  std::vector<Entry> entries;
  for (const auto& found : fs::recursive_directory_iterator(folder)) {
    if (found.is_directory() && !found.is_symlink()) continue;
    const std::string path = found.path().lexically_relative(folder).generic_string();
    if (is_bytecode(path)) continue;
    if (!fs::is_regular_file(found.path())) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = "files in " + folder.string(),
                   .got = "'" + path + "', which is none",
                   .next = "remove it, or put a regular file there"});
    }
    const auto in_memory = files.find(path);
    std::optional<MappedFile> file;
    if (in_memory == files.end()) file.emplace(found.path());
    const std::span<const uint8_t> content = file ? file->bytes() : in_memory->second;
    if (is_lfs ? is_lfs(path) : lfs_by_link(found.path())) {
      const Sha256 hash = sha256(content);
      entries.emplace_back(path, std::string(hash.begin(), hash.end()));
    } else {
      entries.emplace_back(path, git_blob(content));
    }
  }
  return concat_hash(std::move(entries));
}

void verify_locked_variant(const LockedKernel& locked, const fs::path& folder, const IsLfs& is_lfs,
                           const FilesInMemory& files) {
  const std::string variant = folder.filename().string();
  if (!locked.pins_files()) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("the hash of ", variant, " of ", locked.dependency.repo, " in the lock"),
                 .got = "a lock of the form dependencies, which pins the commit alone",
                 .next = "lock again with `hotswap kernel lock --form variants`"});
  }
  const auto found = locked.variants.find(variant);
  if (found == locked.variants.end()) {
    std::vector<std::string> names;
    for (const auto& [name, hash] : locked.variants) names.push_back(name);
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("the build ", variant, " of ", locked.dependency.repo, " in the lock file"),
                 .got = names.empty() ? "no build of it" : cat("only ", join(names)),
                 .next = "run `hotswap kernel lock` again, which locks the builds that the kernel has now"});
  }
  const std::string got = hash_locked_variant(folder, is_lfs, files);
  if (got == found->second) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("the files of ", folder.string(), " as they were locked, ", found->second),
               .got = got,
               .next = "download the package again, or lock again if the change is expected; nothing of it was run"});
}

}  // namespace hotswap
