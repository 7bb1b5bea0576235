#include "hotswap/cli/print/failure.h"

#include <c10/util/Exception.h>

#include "hotswap/base/error.h"

namespace hotswap {

std::string failure_text(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  if (torch == nullptr) return error.what();
  if (dynamic_cast<const c10::OutOfMemoryError*>(torch) == nullptr) return torch->what_without_backtrace();
  return Error({.wanted = "memory on the device",
                .got = cat("none left: ", torch->what_without_backtrace()),
                .next = "make the batch or the sequence smaller, or end what else uses the device (nvidia-smi)"})
      .what();
}

}  // namespace hotswap
