#include "hotswap/hub/package/lockfile.h"

#include <algorithm>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/version.h"
#include "hotswap/hub/package/metadata.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

void expect_lock(bool ok, const char* wanted, const Json& at, const std::string& got) {
  if (ok) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(wanted, " at ", at.where()),
               .got = "'" + shown(got) + "'",
               .next = "lock again"});
}

std::string read_repo(const Json& json, const char* key) {
  auto repo = json.at<std::string>(key);
  expect_lock(is_repo_id(repo), "a repository's name", json.child(key), repo);
  return repo;
}

std::string read_locked_commit(const Json& json, const char* key) {
  auto commit = lower(json.at<std::string>(key));
  expect_lock((commit.size() == 40 || commit.size() == 64) && is_hex(commit), "a whole commit", json.child(key),
              commit);
  return commit;
}

LockedKernel read_variants(const Json& json) {
  json.only({"repo_id", "sha", "variants"});
  LockedKernel kernel;
  kernel.dependency.repo = read_repo(json, "repo_id");
  kernel.commit = read_locked_commit(json, "sha");
  for (const auto& [variant, lock] : json.child("variants").items()) {
    lock.only({"hash", "hash_type"});
    const auto type = lock.get<std::string>("hash_type", "git_lfs_concat");
    expect_lock(type == "git_lfs_concat", "the hash type git_lfs_concat", lock, type);
    auto hash = lock.at<std::string>("hash");
    expect_lock(hash.size() == 71 && hash.starts_with("sha256-") && is_hex(std::string_view(hash).substr(7)),
                "sha256- and 64 hex digits", lock.child("hash"), hash);
    kernel.variants.emplace(variant, std::move(hash));
  }
  return kernel;
}

LockedKernel read_dependency_lock(const Json& json) {
  json.only({"dependency", "lock", "path"});
  const Json dependency = json.child("dependency");
  dependency.only({"repo-id", "version", "revision"});
  LockedKernel kernel;
  kernel.dependency.repo = read_repo(dependency, "repo-id");
  expect_lock(dependency.has("version") != dependency.has("revision"), "exactly one of version and revision",
              dependency, dependency.raw().dump());
  if (dependency.has("version")) {
    kernel.dependency.version = dependency.at<int64_t>("version");
    expect_lock(*kernel.dependency.version >= 0, "a version >= 0", dependency.child("version"),
                dependency.raw().dump());
  } else {
    kernel.dependency.revision = dependency.at<std::string>("revision");
  }
  expect_lock(json.has("lock") != json.has("path"), "exactly one of lock and path", json, kernel.dependency.str());
  if (json.has("path")) {
    kernel.path = json.at<std::string>("path");
    return kernel;
  }
  const Json lock = json.child("lock");
  lock.only({"commit", "hash"});
  kernel.commit = read_locked_commit(lock, "commit");
  kernel.hash = lock.get<std::string>("hash", "");
  return kernel;
}

OutJson written(const LockedKernel& kernel, Lockfile::Form form) {
  const Dependency& d = kernel.dependency;
  if (form == Lockfile::Form::kVariants) {
    OutJson variants = OutJson::object();
    for (const auto& [variant, hash] : kernel.variants) {
      variants[variant] = {{"hash", hash}, {"hash_type", "git_lfs_concat"}};
    }
    return {{"repo_id", d.repo}, {"sha", kernel.commit}, {"variants", variants}};
  }
  OutJson out;
  out["dependency"]["repo-id"] = d.repo;
  if (d.version) {
    out["dependency"]["version"] = *d.version;
  } else {
    out["dependency"]["revision"] = d.revision;
  }
  if (!kernel.path.empty()) {
    out["path"] = kernel.path;
    return out;
  }
  out["lock"]["commit"] = kernel.commit;
  if (!kernel.hash.empty()) out["lock"]["hash"] = kernel.hash;
  return out;
}

Dependency read_value(const std::string& repo, const Json& value, bool ours) {
  expect_lock(is_repo_id(repo), "a repository's name as a key", value, repo);
  Dependency dependency{.repo = repo};
  if (value.is_number()) {
    dependency.version = value.as<int64_t>();
  } else if (ours && value.is_string()) {
    dependency.revision = value.as<std::string>();
    if (const auto version = version_of_branch(dependency.revision)) {
      dependency.version = version;
      dependency.revision.clear();
    }
  } else if (ours && value.is_object()) {
    value.only({"version", "revision"});
    if (value.has("version")) dependency.version = value.at<int64_t>("version");
    dependency.revision = value.get<std::string>("revision", "");
  } else {
    expect_lock(false, ours ? "a version number, a text or a table" : "a version number", value, value.raw().dump());
  }
  expect_lock(dependency.version.has_value() == dependency.revision.empty(), "exactly one of version and revision",
              value, value.raw().dump());
  expect_lock(!dependency.version || *dependency.version >= 0, "a version >= 0", value, value.raw().dump());
  // The grammar of what follows '@' is KernelRef's.
  if (!dependency.revision.empty()) KernelRef(repo, {.version = {}, .revision = dependency.revision});
  return dependency;
}

}  // namespace

std::string Dependency::str() const {
  return version ? cat(repo, "@v", *version) : revision.empty() ? repo : cat(repo, "@", revision);
}

Lockfile Lockfile::parse(std::string_view text, const std::string& where) {
  const Json json = Json::parse(text, where);
  Lockfile lock;
  std::set<std::tuple<std::string, std::optional<int64_t>, std::string>> seen;
  const auto elements = json.elements();
  for (const Json& element : elements) {
    const Form form = element.has("dependency") ? Form::kDependencies : Form::kVariants;
    if (lock.kernels.empty()) lock.form = form;
    expect_lock(form == lock.form, "one form of lock in the whole file", element, "the other form");
    lock.kernels.push_back(form == Form::kVariants ? read_variants(element) : read_dependency_lock(element));
    const Dependency& dependency = lock.kernels.back().dependency;
    expect_lock(seen.insert(dependency.key()).second, "each dependency once", element, dependency.str());
  }
  return lock;
}

Lockfile Lockfile::read(const std::filesystem::path& file) { return parse(read_file(file), file.string()); }

std::string Lockfile::text() const {
  std::vector<LockedKernel> sorted = kernels;
  if (form == Form::kDependencies) {
    std::sort(sorted.begin(), sorted.end(), [](const LockedKernel& a, const LockedKernel& b) {
      // A version comes before a revision, as the derived order of Rust's enum has it.
      const auto order = [](const Dependency& d) { return std::tuple(d.repo, !d.version, d.version, d.revision); };
      return order(a.dependency) < order(b.dependency);
    });
  }
  OutJson out = OutJson::array();
  for (const LockedKernel& kernel : sorted) out.push_back(written(kernel, form));
  return out.dump(2);
}

void Lockfile::write(const std::filesystem::path& file) const { write_file(file, text() + "\n"); }

const LockedKernel& Lockfile::at(const std::string& repo) const {
  const LockedKernel* found = nullptr;
  std::vector<std::string> names;
  for (const LockedKernel& kernel : kernels) {
    names.push_back(kernel.dependency.str());
    if (kernel.dependency.repo != repo) continue;
    if (found != nullptr) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat(repo, " once in the lock file"),
                   .got = cat(found->dependency.str(), " and ", kernel.dependency.str()),
                   .next = "name one of these versions in the request, or remove an entry"});
    }
    found = &kernel;
  }
  if (found != nullptr) return *found;
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("a lock of ", repo),
               .got = cat("Kernel `", repo, "` is not locked; locked are ", names.empty() ? "none" : join(names)),
               .next = "run `hotswap kernel lock`"});
}

std::vector<Dependency> parse_dependencies(const Json& table, bool ours) {
  std::vector<Dependency> dependencies;
  for (const auto& [repo, value] : table.items()) dependencies.push_back(read_value(repo, value, ours));
  return dependencies;
}

}  // namespace hotswap
