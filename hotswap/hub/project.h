// What a project says of its kernels: hotswap.toml (or pyproject.toml's [tool.kernels.dependencies]) and kernels.lock.
//
//   const Project project = Project::current();                       // HOTSWAP_PROJECT's; none: an empty one
//   get_kernel(hub, {.ref = project.named(ref), .trust = project.trust, .lock = project.lock_or_null()})
//
// The working directory is not looked at: [trust] decides what may run, and a folder that somebody merely stands in
// must not.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/package/lockfile.h"
#include "hotswap/hub/sign/signature.h"
#include "hotswap/hub/sign/trust.h"

namespace hotswap {

struct Project {
  std::filesystem::path folder = {};  // empty: no project
  std::vector<Dependency> dependencies = {};
  TrustPolicy trust = {};
  std::vector<Signer> signers = {};  // empty: default_signers()
  std::optional<Lockfile> lock = {};

  // Error where the folder has none of the three files, or one of them is wrong. with_lock: read kernels.lock, too.
  static Project read(const std::filesystem::path& folder, bool with_lock = true);
  static Project current();

  // The same with the version of [dependencies] where it names none.
  KernelRef named(const KernelRef& ref) const;
  const Lockfile* lock_or_null() const { return lock ? &*lock : nullptr; }
};

}  // namespace hotswap
