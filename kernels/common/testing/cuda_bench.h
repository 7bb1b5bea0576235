// Timing on a GPU for cuda_bench.cpp: CUDA events, several sets of inputs so that none stays in L2, a check against
// float64 before the clock, and the copy that every rate is measured against, in the same process.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

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
  struct Settings {
    std::string csv, filter, date, commit;
    int sets = 3, repeats = 5;
  };
  explicit GpuBench(Settings settings) : s_(std::move(settings)) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
    cudaDeviceProp device{};
    cudaGetDeviceProperties(&device, 0);
    machine_ = device.name;
    std::printf("%s\n%-26s %-26s %-9s %9s %9s %7s %8s %6s  %s\n", machine_.c_str(), "op", "shape", "dtype", "ours us",
                "peer us", "ratio", "GB/s", "share", "check, peer");
  }
  bool wants(const std::string& op) const { return s_.filter.empty() || op.find(s_.filter) != std::string::npos; }
  int sets() const { return s_.sets; }

  void run(const GpuCase& c) {
    if (!wants(c.op)) return;
    const at::NoGradGuard no_grad;
    double worst = 0;
    if (c.reference) {
      const Tensors got = c.ours(0), want = c.reference(0);
      for (size_t i = 0; i < want.size(); ++i) {
        const Tensor w = want[i].to(at::kDouble);
        const double error = ((got[i].to(at::kDouble) - w).norm() / w.norm()).item<double>();
        worst = error <= worst ? worst : error;  // NaN stays
      }
    }
    const bool ok = worst <= c.tolerance;
    if (!ok) ++failures_;
    const double ours = ok ? microseconds(c.ours) : 0, theirs = ok && c.theirs ? microseconds(c.theirs) : 0;
    const double copy = ok && c.bytes > 0 ? copy_rate(c.bytes) : 0;
    const double rate = ours > 0 ? c.bytes / ours / 1e3 : 0, share = copy > 0 ? rate / copy : 0;
    std::printf("%-26s %-26s %-9s %9.2f %9.2f %7.2f %8.0f %6.3f  %s %.1e %s %s\n", c.op.c_str(), c.shape.c_str(),
                c.dtype.c_str(), ours, theirs, ours > 0 ? theirs / ours : 0, rate, share, ok ? "ok" : "FAILED", worst,
                c.peer.c_str(), c.note.c_str());
    std::fflush(stdout);
    if (!ok || s_.csv.empty()) return;
    std::FILE* file = std::fopen(s_.csv.c_str(), "a");
    if (file == nullptr) throw std::runtime_error("wanted to append to " + s_.csv + "; cannot open it; check the path");
    const std::string target = c.target_us > 0      ? std::to_string(c.target_us) + " us"
                               : c.target_share > 0 ? std::to_string(c.target_share).substr(0, 4) + " of copy"
                                                    : "";
    std::fprintf(file, "%s,%s,%s,,,2.11.0,,op,%s,%s,%s,,%.3f,,%s,%s,us,%s,%s,%s\n", s_.date.c_str(), s_.commit.c_str(),
                 machine_.c_str(), c.op.c_str(), c.shape.c_str(), c.dtype.c_str(), ours, text(theirs).c_str(),
                 c.peer.c_str(), text(theirs > 0 ? theirs / ours : 0).c_str(), target.c_str(), text(share).c_str());
    std::fclose(file);
  }

  // The same bytes copied from device memory to device memory, GB/s; measured once a size.
  double copy_rate(double bytes) {
    for (const auto& [size, rate] : copies_) {
      if (size == bytes) return rate;
    }
    const int64_t half = int64_t(bytes / 2);
    Tensors from, to;
    for (int i = 0; i < s_.sets; ++i) {
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
    for (int i = 0; i < 3; ++i) fn(i % s_.sets);
    const double once = timed(fn, 2);
    const int calls = int(std::clamp(20e3 / std::max(once, 1.0), 4.0, 400.0));
    std::vector<double> all;
    for (int i = 0; i < s_.repeats; ++i) all.push_back(timed(fn, calls));
    std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
    return all[all.size() / 2];
  }

  int finish() const {
    if (failures_ > 0) std::fprintf(stderr, "%d cases FAILED their check and were not timed\n", failures_);
    return failures_ > 0 ? 1 : 0;
  }

 private:
  static std::string text(double v) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.3f", v);
    return v > 0 ? buffer : "";
  }
  double timed(const std::function<Tensors(int)>& fn, int calls) {
    cudaEventRecord(begin_);
    for (int i = 0; i < calls; ++i) fn(i % s_.sets);
    cudaEventRecord(end_);
    cudaEventSynchronize(end_);
    float ms = 0;
    if (const cudaError_t error = cudaEventElapsedTime(&ms, begin_, end_); error != cudaSuccess)
      throw std::runtime_error(std::string("timing: ") + cudaGetErrorString(error));
    return ms * 1e3 / calls;
  }

  Settings s_;
  cudaEvent_t begin_{}, end_{};
  std::string machine_;
  std::vector<std::pair<double, double>> copies_;
  int failures_ = 0;
};

}  // namespace kernels::bench
