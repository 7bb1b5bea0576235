// A kernel by its name on the Hub to a folder of this machine whose files are what their publisher built.
//
//   Hub hub(HubOptions::from_env());
//   const HubKernel kernel = get_kernel(hub, {.ref = "acme/norm@v1", .system = system});
//   kernel.folder    ~/.cache/huggingface/hub/kernels--acme--norm/snapshots/<commit>/build/<variant>
//
// Only the variant that fits is downloaded. Before anybody can load it, its files are held against the digest in its
// metadata.json, against a Sigstore signature where the policy wants one, and against the lock where there is one.
// Nothing of it is run. A second call asks the network for nothing within HubOptions::ttl_s.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hotswap/hub/kernel_location.h"
#include "hotswap/hub/package/files_in_memory.h"

namespace hotswap {

struct HubKernel {
  KernelLocation location;
  std::string variant;
  std::filesystem::path folder;  // of the variant
  std::string signer;            // by the policy's name; empty: no signature was asked for
  bool digest_checked = true;    // false: the policy leaves it out for this repository
};

// Errors as locate_kernel's; where no variant fits, with the reason for each and the nearest; where a file is not as
// digest, signature or lock have it, naming it.
HubKernel get_kernel(Hub& hub, const KernelRequest& request);
// The second half, of a location that was found. The code of a GPU variant is judged by its metadata.json, so another
// variant than location.choice has may be taken.
HubKernel fetch_kernel(Hub& hub, const KernelRequest& request, KernelLocation location);

// Downloads one variant of the location, or all of them where `variant` is empty, and verifies nothing; the snapshot's
// folder.
std::filesystem::path fetch_variants(Hub& hub, KernelLocation& location, const std::string& variant);
// What holds of a folder when it is fetched must still hold when its library is opened, then of the bytes that are held
// in memory. These ask the network for nothing.
// The signer's name; empty where the policy wants no signature. Error where it wants one and it is not good.
std::string verify_signed(const KernelRequest& request, const KernelLocation& location,
                          const std::filesystem::path& variant_folder, const FilesInMemory& files = {});
// metadata.json, which holds the digests of all else and nobody's of its own, by the hash in the commit's list of
// files. Error where it has another. Nothing where there is no list: a package that was put into the cache by hand.
void verify_listed(const KernelLocation& location, const std::filesystem::path& variant_folder,
                   const FilesInMemory& files = {});
// Error where the lock has a variant of the location otherwise.
void verify_locked(const KernelLocation& location, const std::filesystem::path& variant_folder,
                   const FilesInMemory& files = {});

}  // namespace hotswap
