// What the command line prints of an error, and the exit status that follows from the error's kind.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "hotswap/base/error.h"

namespace hotswap {

// A run that a signal ended in good order: its status is 128 + signal, as a shell has it.
class StoppedBySignal : public std::runtime_error {
 public:
  StoppedBySignal(int signal, const std::string& text) : std::runtime_error(text), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

// One message, without the stack that torch's own errors carry. A GPU's memory that is used up comes from torch, so
// that what to do next is said here.
std::string failure_text(const std::exception& error);

// docs/errors.md has the table. 75 and 70 are EX_TEMPFAIL and EX_SOFTWARE of sysexits.h: try again later, report it.
inline constexpr int kExitError = 1, kExitUsage = 2, kExitInternal = 70, kExitUnavailable = 75;
int exit_status(ErrorKind kind);
int exit_status(const std::exception& error);  // of torch's and the standard library's exceptions, too

}  // namespace hotswap
