// What the files of the CPU's table give each other. Compiled once per ISA.
#pragma once

#include "kernels/moe/moe.h"

namespace kernels::HOTSWAP_ISA {
void packed_product(const PackedProduct& a, int64_t begin, int64_t end);  // common/cpu/per_isa
}

namespace moe::HOTSWAP_ISA {

void widen(float* to, const void* from, DType dtype, int64_t n, bool by_inputs);
void few_rows(const FewRows& a, int64_t begin, int64_t end);
void to_columns(float* to, const float* const* rows, int64_t count, int64_t steps);
void some_rows(const SomeRows& a, int64_t begin, int64_t end);
void packed_input(float* to, const void* const* rows, DType dtype, int64_t count, int64_t in, int64_t begin,
                  int64_t end);

int64_t packed_room(int64_t rows, int64_t in);

}  // namespace moe::HOTSWAP_ISA
