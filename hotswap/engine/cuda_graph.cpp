#include "hotswap/engine/cuda_graph.h"

#include <dlfcn.h>

#include <filesystem>

#include "hotswap/base/error.h"
#include "hotswap/base/own_binary_path.h"

namespace hotswap {
namespace {

using Make = CudaGraph*(c10::DeviceIndex);

// Beside libhotswap, or in lib/ beside the program's folder.
Result<Make*> load() {
  const auto here = own_binary_path();
  if (!here) return Reason{here.why()};
  std::string why;
  for (const auto& folder : {here->parent_path(), here->parent_path().parent_path() / "lib"}) {
    const auto file = folder / "libhotswap_cuda.so";
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why += cat(why.empty() ? "" : "; ", dlerror());
    } else if (void* made = dlsym(library, "hotswap_make_cuda_graph")) {
      return reinterpret_cast<Make*>(made);
    }
  }
  return Reason{cat("no libhotswap_cuda.so, which is built where torch is one for CUDA: ", why)};
}

}  // namespace

Result<std::unique_ptr<CudaGraph>> make_cuda_graph(c10::Device device) {
  static const Result<Make*> make = load();
  if (!make) return Reason{make.why()};
  return std::unique_ptr<CudaGraph>((*make)(device.index()));
}

}  // namespace hotswap
