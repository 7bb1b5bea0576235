#include "hotswap/base/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "hotswap/base/own_binary_path.h"

namespace hotswap {

// Beside libhotswap, or in lib/ beside the program's folder.
Result<void*> cuda_library_symbol(const char* name) {
  const auto here = own_binary_path();
  if (!here) return Reason{here.why()};
  std::string why;
  for (const auto& folder : {here->parent_path(), here->parent_path().parent_path() / "lib"}) {
    const auto file = folder / "libhotswap_cuda.so";
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why += cat(why.empty() ? "" : "; ", dlerror());
    } else if (void* symbol = dlsym(library, name)) {
      return symbol;
    } else {
      why += cat(why.empty() ? "" : "; ", file.string(), " has no ", name);
    }
  }
  return Reason{cat("no libhotswap_cuda.so, which is built where torch is one for CUDA: ", why)};
}

}  // namespace hotswap
