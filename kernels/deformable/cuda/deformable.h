// The same on a GPU: deformable.h's arguments with pointers to its memory. Launches on `stream` of the current device;
// errors are thrown.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/deformable/deformable.h"

namespace deformable::cuda {

using kernels::Stream;

void forward(const Forward& a, Stream stream);

// dlocations and dweights, each query for itself; with `sums`, [batch, rows, heads, channels] of zeros in float32
// (float64 with float64), dvalue by additions in memory, whose order is not fixed.
void backward_gather(const Backward& a, void* sums, Stream stream);
// dvalue = sums, in its type.
void round_sums(const Backward& a, const void* sums, Stream stream);

// dvalue in an order that is fixed: samples are sorted by the pixel at their upper left, then every pixel sums those
// around it. So many images at a time as a key of 32 bits can tell apart.
struct SortPlan {
  int64_t images;        // in one go
  int64_t samples;       // of them, all queries and heads
  int64_t cells;         // of an image and head, at most: pixels at which a sample's upper left can be
  int64_t cells_in_all;  // the key of samples that give nothing; those of the others are below
  int64_t share_bytes;   // what is kept of a sample
  int key_bits;
};
SortPlan plan_sort(const Problem& p);
int64_t sort_bytes(const SortPlan& plan);  // of scratch memory
void backward_sorted(const Backward& a, const SortPlan& plan, void* scratch, Stream stream);

// The same where samples are so few that most pixels get nothing.
bool few_samples(const Problem& p);
int64_t by_pixel_bytes(const Problem& p);  // of scratch memory
void backward_by_pixel(const Backward& a, void* scratch, Stream stream);

}  // namespace deformable::cuda
