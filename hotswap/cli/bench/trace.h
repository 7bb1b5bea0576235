// What ran when, on the CPU and on a GPU, as torch's profiler sees it.
#pragma once

#include <functional>
#include <string>

namespace hotswap {

// Runs `work` and writes a file for chrome://tracing, or Perfetto. Error where the file cannot be written.
void write_trace(const std::string& file, const std::function<void()>& work);

}  // namespace hotswap
