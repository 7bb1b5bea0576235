// The same layer on a GPU: decode.h's arguments with pointers to its memory. One launch on `stream` of the current
// device where a multiprocessor's shared memory holds the rows, else five, each set up while the one before it runs;
// errors are thrown.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/decode/decode.h"

namespace decode::cuda {

void layer(const Layer& a, kernels::Stream stream);
int64_t room(const Layer& a);  // float32 numbers that a.room has; 0: it may be null
// Whether layer() takes such memory and sizes; the reason where not.
const char* refuses(const Layer& a);

}  // namespace decode::cuda
