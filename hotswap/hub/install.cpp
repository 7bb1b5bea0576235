#include "hotswap/hub/install.h"

#include <algorithm>
#include <optional>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/variant_name.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/package/metadata.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargeFrom = 10 << 20;  // as serve-hub describes files: the same package is the same commit there

KernelMetadata checked_metadata(const fs::path& variant) {
  const std::string name = variant.filename().string();
  if (!VariantName::parse(name)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a variant's name, such as torch-stable-abi210-cpu-x86_64-linux",
                 .got = "the folder '" + shown(name) + "'",
                 .next = "rename it to what it was built for; docs/formats.md has the grammar"});
  }
  const fs::path file = variant / "metadata.json";
  KernelMetadata metadata = parse_metadata(read_file(file), file.string());
  if (!metadata.digests) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "digests in " + file.string(),
                 .got = "none",
                 .next = "write them with `hotswap kernel hash " + variant.string() + "`"});
  }
  verify_digests(variant, *metadata.digests);
  return metadata;
}

// The variant of a package without CUDA kernels that is also published as torch-cuda; none where there is a variant for
// CUDA, or no single one for the CPU and every torch from some version on.
std::optional<fs::path> variant_for_cuda_torch(const std::vector<fs::path>& variants) {
  std::vector<fs::path> cpu;
  for (const fs::path& variant : variants) {
    const VariantName name = *VariantName::parse(variant.filename().string());
    if (name.framework == Framework::kNoarch) {
      if (name.noarch == "cuda" || name.noarch == "universal") return {};
    } else if (name.backend.kind == BackendKind::kCuda) {
      return {};
    } else if (name.framework == Framework::kTorchStableAbi && name.backend.kind == BackendKind::kCpu) {
      cpu.push_back(variant);
    }
  }
  return cpu.size() == 1 ? std::optional(cpu.front()) : std::nullopt;
}

// Adds the variant in `folder` to `files` as build/<name>/... The digests have vouched for every name.
void add_files(std::map<std::string, ServedFile>& files, const fs::path& folder, const std::string& name) {
  const auto add = [&](const std::string& file) {
    const std::string path = cat("build/", name, "/", file);
    check_relative_path(path, "file");
    files[path] = describe_file(folder / file, kLargeFrom);
  };
  const auto digests = parse_metadata(read_file(folder / "metadata.json"), folder.string()).digests;
  for (const auto& [file, hash] : digests->files) add(file);
  add("metadata.json");
  if (fs::is_regular_file(folder / "metadata.json.sigstore")) add("metadata.json.sigstore");
}

void put_blob(const HubCache& cache, const Repo& repo, const std::string& commit, const std::string& path,
              const ServedFile& file) {
  const CacheLock lock(cache.lock_file(repo, file.etag()));
  const fs::path blob = cache.blob(repo, file.etag());
  std::error_code code;
  const bool have = fs::is_regular_file(blob, code) && describe_file(blob, kLargeFrom).etag() == file.etag();
  if (!have) {
    const fs::path temporary = temporary_beside(blob, ".tmp");
    try {
      fs::copy_file(file.disk, temporary);
      fs::permissions(temporary, fs::perms::owner_write, fs::perm_options::add);
      fs::rename(temporary, blob);
    } catch (...) {
      fs::remove(temporary, code);
      throw;
    }
  }
  cache.publish(repo, commit, path, file.etag(), !have);
}

}  // namespace

std::vector<fs::path> built_variants(const fs::path& path) {
  if (fs::is_regular_file(path / "metadata.json")) return {fs::canonical(path)};
  std::vector<fs::path> found;
  for (const fs::path& folder : {path, path / "build"}) {
    if (!fs::is_directory(folder)) continue;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename().string().starts_with(".")) continue;
      if (fs::is_regular_file(entry.path() / "metadata.json")) found.push_back(fs::canonical(entry.path()));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

void check_repo_with_publisher(const Repo& repo) {
  check_repo(repo);
  if (!publisher_of(repo).empty()) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a name of the form ORG/NAME",
               .got = "'" + repo.id + "'",
               .next = "add the organization"});
}

BuiltPackage read_built_package(const fs::path& package) {
  const std::vector<fs::path> variants = built_variants(package);
  if (variants.empty()) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "a built package: a folder with build/<variant>/metadata.json",
                 .got = package.string() + ", which has none",
                 .next = "build it first: `hotswap kernel build " + package.string() + "`"});
  }
  BuiltPackage built;
  for (const fs::path& variant : variants) {
    const KernelMetadata metadata = checked_metadata(variant);
    if (built.variants.empty()) {
      built.name = metadata.name;
      built.version = metadata.version;
    } else if (metadata.name != built.name || metadata.version != built.version) {
      throw Error(
          {.kind = ErrorKind::kCorrupt,
           .wanted = cat("variants of ", built.name, " version ", built.version, ", as ", built.variants.front()),
           .got = cat(variant.filename().string(), " of ", metadata.name, " version ", metadata.version),
           .next = "build all variants from one source, or install the folders one by one"});
    }
    built.variants.push_back(variant.filename().string());
    add_files(built.files, variant, built.variants.back());
  }
  if (const auto cpu = variant_for_cuda_torch(variants)) {
    built.variants.emplace_back(kForCudaTorch);
    add_files(built.files, *cpu, kForCudaTorch);
  }
  return built;
}

InstalledPackage install_package(const HubCache& cache, const fs::path& package, const std::string& repo_id) {
  const Repo repo{RepoType::kKernel, repo_id};
  check_repo_with_publisher(repo);
  const BuiltPackage built = read_built_package(package);
  InstalledPackage done{.repo = repo_id,
                        .name = built.name,
                        .commit = commit_of(built.files),
                        .version = built.version,
                        .variants = built.variants};
  done.snapshot = cache.snapshot(repo, done.commit);

  cache.prepare(repo);
  std::vector<TreeEntry> tree;
  for (const auto& [path, file] : built.files) {
    put_blob(cache, repo, done.commit, path, file);
    done.bytes += file.size;
    TreeEntry entry{.path = path, .size = file.size, .oid = file.git_sha1};
    if (file.large) {
      entry.sha256 = file.sha256;
      entry.lfs_size = file.size;
    }
    tree.push_back(std::move(entry));
  }
  // The source may have changed while it was copied, and a blob that was there may have been a broken one.
  for (const std::string& variant : done.variants) {
    const fs::path placed = done.snapshot / "build" / variant;
    verify_digests(placed, *parse_metadata(read_file(placed / "metadata.json"), placed.string()).digests);
  }
  cache.write_tree(repo, done.commit, tree);
  const std::string name = cat("v", done.version);
  const auto before = cache.read_ref(repo, name);
  cache.write_ref(repo, name, done.commit);
  if (cache.read_ref(repo, name) != done.commit) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = cat("refs/", name, " in ", cache.folder(repo).string()),
                 .got = "a cache that cannot be written",
                 .next = "check its permissions, or set HF_HUB_CACHE or KERNELS_CACHE to another folder"});
  }
  if (before && *before != done.commit) done.replaced = *before;
  return done;
}

}  // namespace hotswap
