// hotswap: the command line. Results on stdout, messages on stderr; the exit status follows from the error's
// kind (print/failure.h), 2 is wrong usage.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>

#include "hotswap/base/error.h"
#include "hotswap/cli/print/failure.h"
#include "hotswap/cli/run_line.h"
#include "hotswap/layers/cpu_allocator.h"

int main(int argc, char** argv) {
  hotswap::use_compact_cpu_allocator();
  int status = hotswap::kExitError;
  try {
    status = hotswap::run_line(argc, argv, HOTSWAP_VERSION, HOTSWAP_SOURCE_DIR);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hotswap: error: %s\n", hotswap::failure_text(error).c_str());
    status = hotswap::exit_status(error);
  }
  // What was printed is the result: where it did not arrive, nothing was done.
  const bool lost = std::cout.bad() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (lost) {
    std::fprintf(stderr, "hotswap: error: expected to write the output; got %s; free the disk that stdout goes to\n",
                 std::strerror(errno));
  }
  // Not through static destructors: torch's worker threads and loaded packages need no tearing down.
  std::fflush(nullptr);
  std::_Exit(lost && status == 0 ? hotswap::kExitError : status);
}
