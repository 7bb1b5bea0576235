// From what a mapping names to a package on this machine, the first of these that knows it:
//
//   1. a folder, where a path is named
//   2. LOCAL_KERNELS' folder for the repository
//   3. a bundled package by its own name: hotswap/norm
//   4. a bundled package that stands in for the repository, in its versions up to the one that it was written for; not
//      where a tag, a branch, a commit or the project's lock is named, for that means those very bytes
//   5. the Hub: acme/norm, acme/norm@v2, acme/norm@>=1,<3
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hotswap/base/result.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/kernelize/hub_kernels.h"
#include "hotswap/kernelize/mapping.h"
#include "hotswap/kernelize/package/manifest.h"

namespace hotswap {

inline constexpr const char* kBundledOrg = "hotswap";

struct ResolvedKernel {
  Manifest manifest;
  std::string layer;  // in the package
  std::string
      note;  // "stands in for kernels-community/liger_kernels:LigerRMSNorm", "from acme/norm@<commit>", or empty
  // For load_package: what the project wants of a kernel of the Hub beside its digest. `hub` must outlive it.
  std::function<void(const FilesInMemory&)> verify = {};
};

// Where no layer is named, the one that serves `layer`, by whatever name it has in the repository.
// Error where the kernel does not exist or may not run; a Reason where it does, but has nothing for this kind of
// device.
Result<ResolvedKernel> resolve_kernel(const KernelRef& ref, const std::string& layer, const std::string& device_kind,
                                      const std::vector<Manifest>& bundled, HubKernels& hub);

// LOCAL_KERNELS: repository -> folder.
std::map<std::string, std::string> parse_local_kernels(const std::string& text);

// Every layer of every bundled package, for the devices that its variants are built for, in every mode.
KernelMapping default_mapping(const std::vector<Manifest>& bundled);

// Where a part is mapped by the user and the fused layer that holds it is not, the fused one must not run in its place.
//   AddRMSNorm holds RMSNorm, SwiGLUMLP SiLU, GeGLUMLP GeluTanh, LinearCrossEntropy ForCausalLMLoss
const std::vector<std::pair<std::string, std::string>>& fused_layers();  // {whole, part}

}  // namespace hotswap
