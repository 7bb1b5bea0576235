// A library that tells when it was loaded: its constructor leaves a file beside it. Tests put it in a package's place
// to prove that something was refused before any of its code ran.
#include <dlfcn.h>

#include <fstream>
#include <string>

namespace {

__attribute__((constructor)) void leave_a_mark() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&leave_a_mark), &self) == 0 || self.dli_fname == nullptr) return;
  std::ofstream(std::string(self.dli_fname) + ".was-run") << "1";
}

}  // namespace
