// A library that tells when it was loaded: its constructor leaves a file in test_support::Marks' folder, by the name of
// the library that it was loaded as. Tests put it in a package's place to prove that something was refused before any
// of its code ran.
#include <dlfcn.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace {

// Loaded from memory, its file is a link to "/memfd:<name> (deleted)".
__attribute__((constructor)) void leave_a_mark() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&leave_a_mark), &self) == 0) return;
  char target[512];
  const ssize_t size = readlink(self.dli_fname, target, sizeof target);
  std::string name = size > 0 ? std::string(target, static_cast<size_t>(size)) : self.dli_fname;
  name = name.substr(name.find_last_of("/:") + 1);
  std::ofstream("/tmp/hotswap-test-marks-" + std::to_string(getpid()) + "/" + name.substr(0, name.find(' '))) << "1";
}

}  // namespace
