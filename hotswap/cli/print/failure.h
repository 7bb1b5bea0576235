// What the command line says of an error before it ends with 1.
#pragma once

#include <exception>
#include <string>

namespace hotswap {

// One message, without the stack that torch's own errors carry. A GPU's memory that is used up comes from torch, so
// that what to do next is said here.
std::string failure_text(const std::exception& error);

}  // namespace hotswap
