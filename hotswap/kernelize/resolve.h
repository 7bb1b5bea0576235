// From what a mapping names to a package on this machine: a folder, a LOCAL_KERNELS override, a bundled package by its
// own name (hotswap/norm) or by the name of one that it stands in for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hotswap/base/result.h"
#include "hotswap/hub/kernel_ref.h"
#include "hotswap/kernelize/manifest.h"
#include "hotswap/kernelize/mapping.h"

namespace hotswap {

inline constexpr const char* kBundledOrg = "hotswap";

struct ResolvedKernel {
  Manifest manifest;
  std::string layer;  // in the package
  std::string note;   // "stands in for kernels-community/liger_kernels:LigerRMSNorm", or empty
};

// Error where the kernel does not exist; a Reason where it does, but has nothing for this kind of device.
Result<ResolvedKernel> resolve_kernel(const KernelRef& ref, const std::string& layer, const std::string& device_kind,
                                      const std::vector<Manifest>& bundled);

// LOCAL_KERNELS: repository -> folder.
std::map<std::string, std::string> parse_local_kernels(const std::string& text);

// Every layer of every bundled package, for the devices that its variants are built for, in every mode.
KernelMapping default_mapping(const std::vector<Manifest>& bundled);

// Where a part is mapped by the user and the fused layer that holds it is not, the fused one must not run in its place.
//   AddRMSNorm holds RMSNorm, SwiGLUMLP SiLU, GeGLUMLP GeluTanh, LinearCrossEntropy ForCausalLMLoss
const std::vector<std::pair<std::string, std::string>>& fused_layers();  // {whole, part}

}  // namespace hotswap
