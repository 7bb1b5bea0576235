// libhotswap_cuda.so: what needs torch's CUDA headers. It is built where torch is one for CUDA, and loaded when a
// function of it is first needed; libhotswap itself needs no CUDA.
#pragma once

#include "hotswap/base/result.h"

namespace hotswap {

// The address of a function of it. A Reason where there is no such library, or it lacks the function.
Result<void*> cuda_library_symbol(const char* name);

}  // namespace hotswap
