#include "hotswap/hub/lock_kernels.h"

#include <algorithm>

#include "hotswap/base/log.h"
#include "hotswap/hub/kernel_place.h"

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
  const KernelPlace place = locate_kernel(hub, {.ref = ref, .check_trust = false});
  dependency.repo = place.repo;
  LockedKernel locked{.dependency = dependency, .commit = place.commit, .variants = {}, .hash = "", .path = ""};
  if (form == Lockfile::Form::kDependencies) return locked;
  locked.dependency = {.repo = place.repo};
  locked.variants = variant_hashes(place.files);
  return locked;
}

}  // namespace

Lockfile lock_dependencies(Hub& hub, const std::vector<Dependency>& dependencies, Lockfile::Form form) {
  Lockfile lock{.form = form, .kernels = {}};
  for (const Dependency& dependency : dependencies) {
    LockedKernel locked = lock_one(hub, dependency, form);
    for (const LockedKernel& other : lock.kernels) {
      if (other.dependency.key() != locked.dependency.key()) continue;
      throw Error({.wanted = "each kernel once among the dependencies",
                   .got = cat(other.dependency.str(), " twice, where ", dependency.str(), " leads"),
                   .next = "drop one of them"});
    }
    lock.kernels.push_back(std::move(locked));
  }
  return lock;
}

}  // namespace hotswap
