// For <package>_bench.cpp: ours against torch's eager way and against memcpy, side by side in one process.
//   Bench bench(argc, argv);  // --csv FILE  --filter TEXT  --threads 1,2  --memory reused|system  --clock wall|cpu
//                             --quick
//   bench.run({.op = "rms_norm", .shape = "512x576", .dtype = "float32", .peer = "transformers eager", .bytes = ...,
//              .ours = [&] { ... }, .theirs = [&] { ... }, .error = [&] { ... }, .tolerance = 1e-5});
//   return bench.finish();
// Each case: refcheck first (a wrong result is not timed), then rounds of ours, theirs, memcpy in turn, medians of
// each. bytes: what must be read and written, each once. share: of memcpy's rate for the same bytes and threads.
// Memory: "reused" gives outputs from a list of freed blocks, to both sides, as a host with a caching allocator does;
// "system" is plain malloc, where every large output is new pages and their faults are part of the time.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <mutex>

#include "kernels/common/testing/error.h"
#include "kernels/common/testing/package.h"
#include "kernels/common/testing/results.h"

namespace kernels::bench {

class ReusingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, c10::Device(c10::kCPU)};
    void* data = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex());
      auto& list = free_blocks()[n];
      if (!list.empty()) data = list.back(), list.pop_back();
    }
    if (data == nullptr) {
      void* block = nullptr;
      if (posix_memalign(&block, kHeader, n + kHeader) != 0) throw std::bad_alloc();
      *static_cast<size_t*>(block) = n;
      data = static_cast<char*>(block) + kHeader;
    }
    return {data, data, &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }  // oneDNN allocates without a DataPtr
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }

 private:
  static constexpr size_t kHeader = 64;  // holds the size, keeps the data on a cache line
  static void give_back(void* data) {
    if (data == nullptr) return;  // oneDNN asks for nothing and gives it back
    std::lock_guard<std::mutex> lock(mutex());
    free_blocks()[*reinterpret_cast<size_t*>(static_cast<char*>(data) - kHeader)].push_back(data);
  }
  // Never destroyed: tensors of static duration give their memory back after main.
  static std::mutex& mutex() {
    static auto* const made = new std::mutex;
    return *made;
  }
  static std::map<size_t, std::vector<void*>>& free_blocks() {
    static auto* const made = new std::map<size_t, std::vector<void*>>;
    return *made;
  }
};

struct Case {
  std::string op, shape, dtype, peer;
  int64_t bytes;
  std::function<void()> ours, theirs;
  std::function<double()> error;  // relative L2 error of ours against float64
  double tolerance;
  double target = 0.95;  // so many times as fast as the peer: what we mean to reach
};

class Bench {
 public:
  Bench(int argc, char** argv)
      : flags_(
            parse_flags(argc, argv, {"--csv", "--filter", "--date", "--commit", "--threads", "--memory", "--clock"})),
        results_(flags_, "CPU"),
        rounds_(results_.quick() ? 3 : 11),
        reused_(flags_["--memory"] != "system"),
        cpu_time_(flags_["--clock"] == "cpu") {
    if (const std::string clock = flags_["--clock"]; !cpu_time_ && !clock.empty() && clock != "wall") {
      std::fprintf(stderr, "--clock: expected wall or cpu; got %s\n", clock.c_str());
      std::exit(2);
    }
    if (const std::string memory = flags_["--memory"]; reused_ && !memory.empty() && memory != "reused") {
      std::fprintf(stderr, "--memory: expected reused or system; got %s\n", memory.c_str());
      std::exit(2);
    }
    std::stringstream list(flags_["--threads"]);
    for (std::string n; std::getline(list, n, ',');) threads_.push_back(std::stoi(n));
    if (threads_.empty()) threads_ = {1, 2};
    static ReusingAllocator reusing;
    if (reused_) c10::SetCPUAllocator(&reusing, 100);
  }

  bool wants(const std::string& op) const { return results_.wants(op); }

  void run(const Case& c) {
    if (!wants(c.op)) return;
    for (const int threads : threads_) {
      at::set_num_threads(threads);
      const double error = c.error();
      const bool ok = error <= c.tolerance;  // false for NaN
      const Times t = ok ? measure(c) : Times{};
      results_.add({.op = c.op,
                    .shape = c.shape,
                    .dtype = c.dtype,
                    .threads = std::to_string(threads),
                    .peer = c.peer + (reused_ ? " (memory reused)" : "") + (cpu_time_ ? " (CPU time)" : ""),
                    .ours_us = t.ours * 1e6,
                    .peer_us = t.theirs * 1e6,
                    .bytes = double(c.bytes),
                    .copy_gbps = ok ? double(c.bytes) / t.copy / 1e9 : 0,
                    .error = error,
                    .ok = ok,
                    .target = std::to_string(c.target).substr(0, 4)});
    }
  }

  int finish() const { return results_.finish(); }

 private:
  struct Times {
    double ours = 0, theirs = 0, copy = 0;  // seconds a call, medians
  };

  // By the clock, or of all threads of the process: what other programs use plays no part there.
  double now() const {
    timespec time;
    clock_gettime(cpu_time_ ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
  }
  double seconds(const std::function<void()>& fn, int times) const {
    const double start = now();
    for (int i = 0; i < times; ++i) fn();
    return (now() - start) / times;
  }
  // Calls enough for 2 ms, so that the clock does not matter.
  int calls_for(const std::function<void()>& fn) const {
    fn();
    const double once = std::max(seconds(fn, 1), 1e-8);
    return std::clamp(int(2e-3 / once), 1, 20000);
  }
  static double median(std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
    return v[v.size() / 2];
  }

  Times measure(const Case& c) const {
    c10::InferenceMode guard;
    const int64_t half = std::max<int64_t>(c.bytes / 2, 1);
    const at::Tensor from = at::empty({half}, at::kByte).fill_(1), to = at::empty({half}, at::kByte).fill_(2);
    const auto copy = [&] {
      const auto part = [](int64_t begin, int64_t end, void* context) {
        const auto* pair = static_cast<std::pair<char*, char*>*>(context);
        std::memcpy(pair->first + begin, pair->second + begin, end - begin);
      };
      // not at::parallel_for: its header is serial unless compiled with OpenMP
      std::pair<char*, char*> pair(static_cast<char*>(to.data_ptr()), static_cast<char*>(from.data_ptr()));
      torch_parallel_for(0, half, 32768, part, &pair);
    };
    const int ours = calls_for(c.ours), theirs = calls_for(c.theirs), copies = calls_for(copy);
    std::vector<double> a, b, m;
    double spent = 0;
    for (int round = 0; round < rounds_ && (round < 3 || spent < 1.5); ++round) {
      a.push_back(seconds(c.ours, ours));
      b.push_back(seconds(c.theirs, theirs));
      m.push_back(seconds(copy, copies));
      spent += a.back() * ours + b.back() * theirs + m.back() * copies;
    }
    return {median(a), median(b), median(m)};
  }

  Flags flags_;
  Results results_;
  std::vector<int> threads_;
  int rounds_;
  bool reused_, cpu_time_;
};

inline const char* short_name(at::ScalarType dtype) {
  return dtype == at::kFloat ? "float32" : dtype == at::kBFloat16 ? "bfloat16" : "float16";
}

}  // namespace kernels::bench
