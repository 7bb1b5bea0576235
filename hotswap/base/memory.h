// The memory of this process: what it uses and its peak.
#pragma once

#include <cstdint>

namespace hotswap {

int64_t resident_memory();  // bytes in RAM now
int64_t peak_memory();      // the most bytes in RAM since the process started, or since reset_peak_memory()

// Starts a new peak at the present use. False where the system does not allow it (then peak_memory() stays that of the
// whole process: measure each variant in a process of its own).
bool reset_peak_memory();

}  // namespace hotswap
