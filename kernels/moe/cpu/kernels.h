// What the files of the CPU's table give each other. Compiled once per ISA.
#pragma once

#include "kernels/moe/moe.h"

namespace moe::HOTSWAP_ISA {

void few_rows(const FewRows& a, int64_t begin, int64_t end);

}  // namespace moe::HOTSWAP_ISA
