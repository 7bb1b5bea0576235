// What the files of the scan's table give each other. Compiled once per ISA.
#pragma once

#include "kernels/mamba/scan.h"

namespace mamba::scan::HOTSWAP_ISA {

void backward(const Backward& a, float* memory, int64_t begin, int64_t end);
void sum_tokens(const Backward& a, int64_t begin, int64_t end);
void sum_channels(const Backward& a, int64_t begin, int64_t end);

}  // namespace mamba::scan::HOTSWAP_ISA
