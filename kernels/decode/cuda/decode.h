// The same layer on a GPU: decode.h's arguments with pointers to its memory. Five launches on `stream` of the current
// device, each set up while the one before it runs; errors are thrown.
#pragma once

#include "kernels/common/gpu/gemv/packed_rows.h"
#include "kernels/common/gpu/launch.h"
#include "kernels/decode/decode.h"

namespace decode::cuda {

void layer(const Layer& a, kernels::Stream stream);
void heads(const Heads& a, kernels::Stream stream);    // one launch, of heads of 64 or 128
void inputs(const Inputs& a, kernels::Stream stream);  // one launch
void packed_product(const kernels::gpu::PackedRows& a, kernels::Stream stream);
bool takes_packed_rows();  // on the current device
// Whether layer() takes such memory and sizes; the reason where not.
const char* refuses(const Layer& a);

}  // namespace decode::cuda
