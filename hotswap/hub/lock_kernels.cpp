#include "hotswap/hub/lock_kernels.h"

#include <algorithm>

#include "hotswap/base/file.h"
#include "hotswap/base/log.h"
#include "hotswap/hub/kernel_location.h"
#include "hotswap/hub/package/metadata.h"

namespace hotswap {
namespace {

// Where main says that the repository has gone to.
std::optional<std::string> destination_of(Hub& hub, const std::string& id) {
  const Repo repo{RepoType::kKernel, id};
  const RepoRefs refs = hub.refs(repo);
  const auto main =
      std::find_if(refs.branches.begin(), refs.branches.end(), [](const RepoRef& ref) { return ref.name == "main"; });
  if (main == refs.branches.end()) return std::nullopt;
  const auto redirect = redirect_of(hub, repo, main->commit, hub.tree(repo, main->commit));
  if (!redirect) return std::nullopt;
  return redirect->destination;
}

LockedKernel lock_one(Hub& hub, Dependency dependency, Lockfile::Form form) {
  if (const auto destination = destination_of(hub, dependency.repo)) {
    log_warning("'", dependency.repo, "' redirected to '", *destination, "'");
    dependency.repo = *destination;
  }
  const KernelRef ref(dependency.repo, {.version = dependency.version, .revision = dependency.revision});
  const KernelLocation location = locate_kernel(hub, {.ref = ref, .check_trust = false});
  dependency.repo = location.repo;
  LockedKernel locked{.dependency = dependency, .commit = location.commit, .variants = {}, .hash = "", .path = ""};
  if (form == Lockfile::Form::kDependencies) return locked;
  locked.dependency = {.repo = location.repo};
  locked.variants = variant_hashes(location.files);
  return locked;
}

// What a kernel depends on itself, in any of its variants.
std::vector<Dependency> depends_of(Hub& hub, const LockedKernel& kernel) {
  const Repo repo{RepoType::kKernel, kernel.dependency.repo};
  std::vector<Dependency> all;
  for (const std::string& variant : variant_names(hub.tree(repo, kernel.commit))) {
    const auto file = hub.find_file(repo, kernel.commit, cat("build/", variant, "/metadata.json"));
    if (!file) continue;
    for (const KernelDepend& depend : parse_metadata(read_file(*file), file->string()).kernel_depends) {
      all.push_back({.repo = depend.repo, .version = depend.version, .revision = depend.revision});
    }
  }
  return all;
}

bool has(const Lockfile& lock, const Dependency& dependency) {
  return std::any_of(lock.kernels.begin(), lock.kernels.end(),
                     [&](const LockedKernel& kernel) { return kernel.dependency.key() == dependency.key(); });
}

}  // namespace

Lockfile lock_dependencies(Hub& hub, const std::vector<Dependency>& dependencies, Lockfile::Form form) {
  Lockfile lock{.form = form, .kernels = {}};
  for (const Dependency& dependency : dependencies) {
    LockedKernel locked = lock_one(hub, dependency, form);
    if (has(lock, locked.dependency)) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "each kernel once among the dependencies",
                   .got = cat(locked.dependency.str(), " twice, where ", dependency.str(), " leads"),
                   .next = "drop one of them"});
    }
    lock.kernels.push_back(std::move(locked));
  }
  if (form == Lockfile::Form::kVariants) return lock;
  for (size_t i = 0; i < lock.kernels.size(); ++i) {  // which grows
    for (const Dependency& needed : depends_of(hub, lock.kernels[i])) {
      if (has(lock, needed)) continue;
      LockedKernel locked = lock_one(hub, needed, form);
      if (!has(lock, locked.dependency)) lock.kernels.push_back(std::move(locked));
    }
  }
  return lock;
}

}  // namespace hotswap
