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
#include "hotswap/cli/verbs.h"
#include "hotswap/layers/cpu_allocator.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app(
      "Hot-swap the layers of transformers for optimized kernels.\n"
      "Results go to stdout, messages to stderr. Exit 0: done; 1: an error; 2: wrong usage;\n70: a fault of hotswap; "
      "75: a Hub, a device or memory that is unavailable now.",
      "hotswap");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(HOTSWAP_VERSION));
  hotswap::add_verbs(app, HOTSWAP_SOURCE_DIR);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : hotswap::kExitUsage;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  hotswap::use_compact_cpu_allocator();
  int status = hotswap::kExitError;
  try {
    status = run(argc, argv);
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
