#include "hotswap/base/own_binary_path.h"

#include <dlfcn.h>

#include <string>

namespace hotswap {

Result<std::filesystem::path> own_binary_path() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&own_binary_path), &self) == 0 || self.dli_fname == nullptr) {
    return Reason{"this program's own place is unknown"};
  }
  // A program's own name may be relative to a working directory that has changed since; a library's is a path.
  std::error_code failed;
  const std::filesystem::path here = std::filesystem::canonical(self.dli_fname, failed);
  const bool library = !failed && here.filename().string().find(".so") != std::string::npos;
  return library ? here : std::filesystem::read_symlink("/proc/self/exe");
}

}  // namespace hotswap
