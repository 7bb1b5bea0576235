#include "hotswap/cli/bench/trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <filesystem>
#include <set>

#include "hotswap/base/error.h"

namespace hotswap {

void write_trace(const std::string& file, const std::function<void()>& work) {
  using namespace torch::autograd::profiler;  // NOLINT(google-build-using-namespace)
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CPU, ActivityType::CUDA};
  prepareProfiler(config, activities);
  enableProfiler(config, activities);
  work();
  std::filesystem::remove(file);
  disableProfiler()->save(file);
  if (std::filesystem::exists(file)) return;
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat("to write ", file),
               .got = "a profiler that wrote nothing",
               .next = "check that the folder is there and can be written, and that this torch has Kineto"});
}

}  // namespace hotswap
