// For <package>_cuda_bench.cpp: ours against torch's own on a GPU, in one process. CUDA events, several sets of inputs
// so that none stays in L2, a check against float64 before the clock, and the copy that every rate is measured against.
//   void cases(GpuBench& bench) { bench.run({.op = "rms_norm", .shape = by(rows, cols), ...}); }
//   int main(int argc, char** argv) { return gpu_main(argc, argv, cases); }
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/common/testing/error.h"
#include "kernels/common/testing/package.h"
#include "kernels/common/testing/results.h"

namespace kernels::bench {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct GpuCase {
  std::string op, shape, dtype;
  double bytes;                            // read and written, each once; 0: nothing to compare with a copy
  double target_share;                     // of the copy's rate; 0: none
  std::function<Tensors(int set)> ours;    // one call on a set of inputs
  std::function<Tensors(int set)> theirs;  // may be empty
  std::string peer;
  std::function<Tensors(int set)> reference;  // float64, or empty: not checked
  double tolerance;                           // of the relative L2 error of each output
  double target_us = 0;
  std::string note = "";
};

class GpuBench {
 public:
  explicit GpuBench(const Flags& flags) : results_(flags, machine()), repeats_(results_.quick() ? 3 : 5) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  bool wants(const std::string& op) const { return results_.wants(op); }
  int sets() const { return kSets; }

  void run(const GpuCase& c) {
    if (!wants(c.op)) return;
    const at::NoGradGuard no_grad;
    const double worst = c.reference ? relative_l2(c.ours(0), c.reference(0)) : 0;
    const bool ok = worst <= c.tolerance;
    results_.add({.op = c.op,
                  .shape = c.shape,
                  .dtype = c.dtype,
                  .threads = "",
                  .peer = c.peer,
                  .ours_us = ok ? microseconds(c.ours) : 0,
                  .peer_us = ok && c.theirs ? microseconds(c.theirs) : 0,
                  .bytes = c.bytes,
                  .copy_gbps = ok && c.bytes > 0 ? copy_rate(c.bytes) : 0,
                  .error = worst,
                  .ok = ok,
                  .target = c.target_us > 0      ? std::to_string(c.target_us) + " us"
                            : c.target_share > 0 ? std::to_string(c.target_share).substr(0, 4) + " of copy"
                                                 : "",
                  .note = c.note});
  }

  // The same bytes copied from device memory to device memory, GB/s; measured once a size.
  double copy_rate(double bytes) {
    for (const auto& [size, rate] : copies_) {
      if (size == bytes) return rate;
    }
    const int64_t half = int64_t(bytes / 2);
    Tensors from, to;
    for (int i = 0; i < kSets; ++i) {
      from.push_back(at::randn({half / 4 + 1}, at::device(at::kCUDA)).view(at::kByte).narrow(0, 0, half));
      to.push_back(at::empty({half}, at::device(at::kCUDA).dtype(at::kByte)));
    }
    const double us = microseconds([&](int i) {
      to[i].copy_(from[i]);
      return Tensors{};
    });
    copies_.push_back({bytes, bytes / us / 1e3});
    return copies_.back().second;
  }

  // The median of `repeats` means over enough calls.
  double microseconds(const std::function<Tensors(int)>& fn) {
    for (int i = 0; i < 3; ++i) fn(i % kSets);
    const double once = timed(fn, 2);
    const int calls = int(std::clamp(20e3 / std::max(once, 1.0), 4.0, 400.0));
    std::vector<double> all;
    for (int i = 0; i < repeats_; ++i) all.push_back(timed(fn, calls));
    std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
    return all[all.size() / 2];
  }

  int finish() const { return results_.finish(); }

 private:
  static constexpr int kSets = 3;
  static std::string machine() {
    cudaDeviceProp device{};
    cudaGetDeviceProperties(&device, 0);
    return device.name;
  }
  double timed(const std::function<Tensors(int)>& fn, int calls) {
    cudaEventRecord(begin_);
    for (int i = 0; i < calls; ++i) fn(i % kSets);
    cudaEventRecord(end_);
    cudaEventSynchronize(end_);
    float ms = 0;
    if (const cudaError_t error = cudaEventElapsedTime(&ms, begin_, end_); error != cudaSuccess)
      throw std::runtime_error(std::string("timing: ") + cudaGetErrorString(error));
    return ms * 1e3 / calls;
  }

  Results results_;
  int repeats_;
  cudaEvent_t begin_{}, end_{};
  std::vector<std::pair<double, double>> copies_;
};

// ---- what cases are made of
inline const auto kBf16 = at::device(at::kCUDA).dtype(at::kBFloat16);
constexpr double kBf16Error = 8e-3;

inline Tensor random(at::IntArrayRef shape, double scale = 1) { return at::randn(shape, kBf16) * scale; }
inline Tensors randoms(int sets, at::IntArrayRef shape, double scale = 1) {
  Tensors out;
  for (int i = 0; i < sets; ++i) out.push_back(random(shape, scale));
  return out;
}
inline Tensor wide(const Tensor& t) { return t.to(at::kDouble); }
inline std::string by(int64_t a, int64_t b) { return std::to_string(a) + "x" + std::to_string(b); }

// f'(x) by central differences in float64: error h^2 of a third derivative.
inline Tensor slope(Tensor (*f)(const Tensor&), const Tensor& x) { return (f(x + 1e-4) - f(x - 1e-4)) / 2e-4; }

inline const Package& gpu_package() {
  static const Package loaded(packages_dir() + "/" + HOTSWAP_CUDA_PACKAGE_DIR);
  return loaded;
}

inline int gpu_main(int argc, char** argv, void (*cases)(GpuBench&)) {
  const Flags flags = parse_flags(argc, argv, {"--csv", "--filter", "--date", "--commit"});
  if (!load_torch_cuda() || !at::globalContext().hasCUDA()) {
    std::fprintf(stderr, "expected a GPU; got none that torch can use\n");
    return 77;
  }
  at::empty({1}, at::device(at::kCUDA));  // brings the context and the allocator up
  GpuBench bench(flags);
  cases(bench);
  return bench.finish();
}

}  // namespace kernels::bench
