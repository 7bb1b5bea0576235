#include "hotswap/base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

namespace hotswap {
namespace {

// "VmHWM:     1752 kB" of /proc/self/status in bytes; -1 where there is no such line.
int64_t status_bytes(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key, 0) == 0) return std::stoll(line.substr(std::strlen(key))) * 1024;
  }
  return -1;
}

}  // namespace

int64_t resident_memory() { return status_bytes("VmRSS:"); }

int64_t peak_memory() {
  const int64_t peak = status_bytes("VmHWM:");
  if (peak >= 0) return peak;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

bool reset_peak_memory() {
  std::ofstream refs("/proc/self/clear_refs");
  refs << "5" << std::flush;
  return refs.good();
}

}  // namespace hotswap
