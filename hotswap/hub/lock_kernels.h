// `kernel lock`: what a project's dependencies mean on the Hub today, written down.
#pragma once

#include <vector>

#include "hotswap/hub/hub.h"
#include "hotswap/hub/package/lockfile.h"

namespace hotswap {

// Each dependency's commit and, in the form kVariants, the hash of every variant of it; in the form kDependencies the
// kernels that these depend on as well, which Python looks up in the same lock. A repository that redirects is
// locked by where it leads, as Python's `kernels lock` has it: kernel-status.toml of main is asked first, then the
// version is looked up at the destination. Nothing is downloaded but that file and metadata.json.
Lockfile lock_dependencies(Hub& hub, const std::vector<Dependency>& dependencies, Lockfile::Form form);

}  // namespace hotswap
