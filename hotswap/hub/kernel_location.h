// Where a kernel lies on the Hub, and which of its variants fits here: names, lists and trust, no code yet.
//
//   const KernelLocation location = locate_kernel(hub, {.ref = "acme/norm@>=1,<3", .system = system});
//   location.repo, location.commit, *location.choice.chosen
//
// In this order: trust in the repository named; the commit that is meant; the list of its files; where
// kernel-status.toml leads elsewhere, the same again there. What is answered from the cache is not asked (hub.h); what
// a version or a specifier meant is written to refs/, where Python and we find it offline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hotswap/hub/hub.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/names/variant.h"
#include "hotswap/hub/package/lockfile.h"
#include "hotswap/hub/sign/signature.h"
#include "hotswap/hub/sign/trust.h"

namespace hotswap {

struct KernelRequest {
  // Of a repository. Without version and revision it means version 1, as transformers has it, unless a lock knows it.
  KernelRef ref = {};
  System system = {};
  TrustPolicy trust = {};
  bool check_trust = true;           // false: for who looks and runs nothing
  const Lockfile* lock = nullptr;    // pins the commit, and the variants' hashes, of the kernels in it
  std::vector<Signer> signers = {};  // who may sign where the policy wants a signature; empty: default_signers()
};

struct KernelLocation {
  std::string repo;   // where redirects ended
  std::string asked;  // the branch, tag, specifier or commit that was looked up there
  std::string commit;
  std::string led_from;                  // the repository named, where another one redirects from it; else empty
  std::vector<TreeEntry> files;          // of the commit; from a cache without a list: those on this disk, paths alone
  VariantChoice choice;                  // by the names of the variants
  const LockedKernel* locked = nullptr;  // of the request's lock
  RepoType type = RepoType::kKernel;     // kOldKernel: offline, and only an older Python has fetched it

  std::string str() const { return repo + "@" + commit; }
  Repo repository() const { return {type, repo}; }
};

// Error where trust is refused, the repository or what is asked of it does not exist (naming what does), offline and
// the cache lacks it, or a lock has it otherwise. That no variant fits is no Error: location.choice.chosen is empty
// then.
KernelLocation locate_kernel(Hub& hub, const KernelRequest& request);

// Where kernel-status.toml says that a commit with these files has gone to; none where it has no such file.
std::optional<Redirect> redirect_of(Hub& hub, const Repo& repo, const std::string& commit,
                                    const std::vector<TreeEntry>& files);

// The variants below build/, in the tree's order.
std::vector<std::string> variant_names(const std::vector<TreeEntry>& files);

}  // namespace hotswap
