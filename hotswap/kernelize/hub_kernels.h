// Kernels of the Hub for kernelize: one client, one project and one answer a name, for as long as the object lives. So
// a model that is bound anew, for training or evaluation, keeps the commits that it began with, and asks nobody.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "hotswap/base/result.h"
#include "hotswap/hub/get_kernel.h"
#include "hotswap/hub/project.h"

namespace hotswap {

class HubKernels {
 public:
  // project: a folder with hotswap.toml, kernels.lock; empty: HOTSWAP_PROJECT's.
  explicit HubKernels(bool allow_all_kernels = false, const std::filesystem::path& project = {});

  // With the version of the project's [dependencies] where the name says none.
  KernelRef named(const KernelRef& ref) const { return project_.named(ref); }
  // Downloaded and verified, not loaded. A Reason where no variant fits the device; Errors as get_kernel's.
  const Result<HubKernel>& get(const KernelRef& ref, const std::string& device_kind);
  // What get() found, held anew against the policy's signature, the commit's list and the lock: for the moment before
  // its library is opened, which may be long after. `files`: the bytes that will be used. The digest is load_package's.
  // Asks the network for nothing.
  void verify(const HubKernel& kernel, const FilesInMemory& files) const;

 private:
  KernelRequest request() const;  // of the project, for no kernel yet

  Project project_;
  std::unique_ptr<Hub> hub_;  // made by the first name that needs it
  std::map<std::string, Result<HubKernel>> known_;
};

// "from acme/norm@<commit> (v1), torch-stable-abi210-cpu-x86_64-linux", with the redirect and the signer where there
// are.
std::string origin_of(const HubKernel& kernel);

}  // namespace hotswap
