// One function a quantised type of ggml: bytes as a GGUF file holds them to float32. Every product there is exact;
// where a block has a minimum, subtracting it (adding it) is the one rounding. The registry of types is in
// gguf_dequant.cpp.
//
// "low first": the low nibbles are the first half of a group's weights, the high ones the second half.
#pragma once

#include <cstdint>

namespace hotswap::gguf_blocks {

// weights: a multiple of the type's block.
using Decode = void(const uint8_t* from, float* to, int64_t weights);

Decode f32, f16, bf16;
Decode q4_0;    // 32: half d, 16 bytes, low first                                   d (q - 8)
Decode q4_1;    // 32: half d, half m, 16 bytes, low first                           d q + m
Decode q5_0;    // 32: half d, 32 fifth bits, 16 bytes, low first                    d (q - 16)
Decode q5_1;    // 32: half d, half m, 32 fifth bits, 16 bytes, low first            d q + m
Decode q8_0;    // 32: half d, 32 int8                                               d q
Decode iq4_nl;  // 32: as q4_0, q an index of a table                                d T[q]
Decode mxfp4;   // 32: exponent e, 16 bytes of e2m1 codes, low first                 2^(e - 127) q
Decode nvfp4;   // 64: 4 unsigned e4m3 scales, 4 times 8 bytes of e2m1, low first    s q
// Of 256 weights, in sub-blocks of 16 or 32 with a scale s (and a minimum m) each.
Decode q2_k, q4_k, q5_k;  // (d s) q - (dmin m)
Decode q3_k, q6_k;        // (d s) (q - 4), (d s) (q - 32)
Decode iq4_xs;            // (d s) T[q], T as iq4_nl
Decode tq1_0, tq2_0;      // d q, q one of -1, 0, 1: five to a byte in base 3, four to a byte

}  // namespace hotswap::gguf_blocks
