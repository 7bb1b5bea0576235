// What each file brings to the table of an ISA.
#pragma once

#include "kernels/attention/cpu/problem.h"

namespace attention::HOTSWAP_ISA {

void forward(const cpu::Attention& a, const cpu::Item& rows, float* scratch);
void stream(const cpu::Attention& a, const cpu::Item& keys, float* parts, float* scratch);
void merge(const cpu::Attention& a, const cpu::Merge& merge, float* parts);
void backward(const cpu::AttentionBackward& a, const cpu::Item& rows, const cpu::BackwardMemory& memory);
void write_gradients(const cpu::AttentionBackward& a, const cpu::Merge& merge, const float* parts, int64_t apart,
                     const cpu::Span* seen);

}  // namespace attention::HOTSWAP_ISA
