// The same formulas on a GPU: probability.h's arguments with pointers to its memory, over all rows. Launches on
// `stream` of the current device; errors are thrown.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/probability/probability.h"

namespace probability::cuda {

using kernels::Stream;

void softmax(const Softmax& a, Stream stream);        // backward where a.dy is given
void divergence(const Divergence& a, Stream stream);  // backward where a.dx is given
void of_logits(const OfLogits& a, Stream stream);

}  // namespace probability::cuda
