#include "hotswap/cli/print/failure.h"

#include <c10/util/Exception.h>

#include <new>

namespace hotswap {

std::string failure_text(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  if (torch == nullptr) return error.what();
  if (dynamic_cast<const c10::OutOfMemoryError*>(torch) == nullptr) return torch->what_without_backtrace();
  return Error({.kind = ErrorKind::kUnavailable,
                .wanted = "memory on the device",
                .got = cat("none left: ", torch->what_without_backtrace()),
                .next = "make the batch or the sequence smaller, or end what else uses the device (nvidia-smi)"})
      .what();
}

int exit_status(ErrorKind kind) {
  if (kind == ErrorKind::kUnavailable) return kExitUnavailable;
  return kind == ErrorKind::kInternal ? kExitInternal : kExitError;
}

int exit_status(const std::exception& error) {
  if (const auto* stopped = dynamic_cast<const StoppedBySignal*>(&error)) return 128 + stopped->signal();
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return exit_status(ours->kind());
  const bool no_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                         dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return exit_status(no_memory ? ErrorKind::kUnavailable : ErrorKind::kInternal);
}

}  // namespace hotswap
