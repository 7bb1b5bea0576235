// The memory of this process: what it uses, its peak, and how malloc keeps large blocks.
#pragma once

#include <cstdint>

namespace hotswap {

int64_t resident_memory();  // bytes in RAM now
int64_t peak_memory();      // the most bytes in RAM since the process started, or since reset_peak_memory()

// Starts a new peak at the present use. False where the system does not allow it (then peak_memory() stays that of the
// whole process: measure each variant in a process of its own).
bool reset_peak_memory();

// Large tensors come from malloc, which by default maps fresh pages for every block over 32 MB at most and gives them
// back when freed: each step then pays for zeroing the same pages again. After this call freed blocks are kept and used
// again. A host calls it once, at its start, before other threads run; it changes the whole process, so the library
// never calls it by itself. No effect where malloc is not glibc's.
void tune_allocator();

}  // namespace hotswap
