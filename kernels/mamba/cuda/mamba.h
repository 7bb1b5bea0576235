// The package's ops on a GPU: the arguments of conv.h and its neighbours with pointers to its memory. Each call is some
// launches on `stream` of the current device; errors are thrown. Nothing is read back, and every sum has its order: the
// bits are the same run after run.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/mamba/conv.h"
#include "kernels/mamba/gated_norm.h"
#include "kernels/mamba/scan.h"
#include "kernels/mamba/ssd.h"
#include "kernels/mamba/update.h"

namespace mamba::cuda {

using kernels::Stream;

// Entries of Backward's partials: so many times [width + 1, channels], whatever the views' layout.
int64_t conv_partials(const conv::Problem& p);
void conv_forward(const conv::Forward& a, Stream stream);
void conv_backward(const conv::Backward& a, Stream stream);  // with the sums of the partials
void conv_update(const conv::Update& a, Stream stream);

// Floats of memory that forward works in, and backward.
int64_t scan_memory(const scan::Problem& p);
int64_t scan_backward_memory(const scan::Problem& p);
void scan_forward(const scan::Forward& a, float* memory, Stream stream);
// Parts of a group's channels that have token sums of their own: [batch, groups, slots, length, 2, states].
int64_t scan_slots(const scan::Problem& p);
// Entries of channel_sums: those of the batch, or of parts of the time too.
int64_t scan_entries(const scan::Problem& p);
void scan_backward(const scan::Backward& a, float* memory, Stream stream);  // with the sums over slots and batch
void state_update(const update::Problem& p, Stream stream);

// Floats of memory that a call works in: decays, states of all chunks, sums.
int64_t ssd_memory(const ssd::Forward& a);
int64_t ssd_memory(const ssd::Backward& a);
void ssd_forward(const ssd::Forward& a, float* memory, Stream stream);
void ssd_backward(const ssd::Backward& a, float* memory, Stream stream);

// Rows of Backward's partial.
int64_t gated_norm_partials(const gated_norm::Problem& p);
void gated_norm_forward(const gated_norm::Forward& a, Stream stream);
void gated_norm_backward(const gated_norm::Backward& a, Stream stream);  // with the sums of the partials

}  // namespace mamba::cuda
