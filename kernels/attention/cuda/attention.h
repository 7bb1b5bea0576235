// attention.h's formulas on a GPU. Launches on `stream` of the current device, without waiting for it; errors are
// thrown. An op is three functions:
//   refused          why the kernels cannot take it ("" if they can): what is wanted and what came. Asked before the
//                    outputs exist: their pointers may be null then. Strides that are refused are the caller's to copy.
//   workspace_bytes  memory of the device that a call needs for itself, at a multiple of 256, with any content. A
//                    function of shapes alone: a captured graph may be replayed with other lengths of packed sequences.
//   forward, ...     the launches. Throws what refused() says.
#pragma once

#include <string>

#include "kernels/attention/attention.h"
#include "kernels/common/gpu/launch.h"

namespace attention::cuda {

using kernels::Stream;

std::string refused(const Forward& a);
int64_t workspace_bytes(const Forward& a);
void forward(const Forward& a, void* workspace, Stream stream);

std::string refused(const Backward& a);
int64_t workspace_bytes(const Backward& a);
void backward(const Backward& a, void* workspace, Stream stream);

std::string refused(const Decode& a);
int64_t workspace_bytes(const Decode& a);
void decode(const Decode& a, void* workspace, Stream stream);

}  // namespace attention::cuda
