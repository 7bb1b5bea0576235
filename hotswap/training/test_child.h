// For tests: work in a process of its own, of which nothing of this one's threads is left.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace hotswap::test_support {

// Its status is 1, and stderr has the message, where the work throws.
template <typename Work>
pid_t in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int status = 0;
  try {
    work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 1;
  }
  std::_Exit(status);
}

inline int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace hotswap::test_support
