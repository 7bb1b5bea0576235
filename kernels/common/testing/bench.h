// For <package>_bench.cpp: ours against torch's eager way and against memcpy, side by side in one process.
//   Bench bench(argc, argv);                    // --csv FILE  --filter TEXT  --threads 1,2  --memory reused|system
//   --quick bench.run({.op = "rms_norm", .shape = "512x576", .dtype = "float32", .peer = "transformers eager", .bytes =
//   ...,
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
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "kernels/common/testing/package.h"

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
};

class Bench {
 public:
  Bench(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string flag = argv[i];
      if (flag == "--quick") {
        rounds_ = 3;
        continue;
      }
      if (i + 1 == argc) fail(flag);
      const std::string value = argv[++i];
      if (flag == "--csv")
        csv_ = value;
      else if (flag == "--filter")
        filter_ = value;
      else if (flag == "--threads")
        parse_threads(value);
      else if (flag == "--memory" && (value == "reused" || value == "system"))
        reused_ = value == "reused";
      else
        fail(flag);
    }
    static ReusingAllocator reusing;
    if (reused_) c10::SetCPUAllocator(&reusing, 100);
    std::printf("%-20s %-14s %-8s %2s %10s %10s %6s %7s %7s %5s  %s\n", "op", "shape", "dtype", "th", "ours us",
                "peer us", "ratio", "GB/s", "memcpy", "share", "refcheck, peer");
  }

  bool wants(const std::string& op) const { return filter_.empty() || op.find(filter_) != std::string::npos; }

  void run(const Case& c) {
    if (!wants(c.op)) return;
    for (const int threads : threads_) {
      at::set_num_threads(threads);
      const double error = c.error();
      const bool ok = error <= c.tolerance;  // false for NaN
      char check[48];
      std::snprintf(check, sizeof check, "%s %.1e", ok ? "ok" : "FAILED", error);
      if (!ok) ++failures_;
      row(c, threads, ok ? measure(c) : Times{}, check);
    }
  }

  int finish() const {
    if (failures_ > 0) std::fprintf(stderr, "%d cases FAILED their refcheck and were not timed\n", failures_);
    return failures_ > 0 ? 1 : 0;
  }

 private:
  struct Times {
    double ours = 0, theirs = 0, copy = 0;  // seconds a call, medians
  };

  [[noreturn]] static void fail(const std::string& flag) {
    std::fprintf(stderr,
                 "wanted [--csv FILE] [--filter TEXT] [--threads 1,2] [--memory reused|system] [--quick]; got %s\n",
                 flag.c_str());
    std::exit(2);
  }
  void parse_threads(const std::string& list) {
    threads_.clear();
    std::stringstream text(list);
    for (std::string n; std::getline(text, n, ',');) threads_.push_back(std::stoi(n));
  }

  static double seconds(const std::function<void()>& fn, int times) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) fn();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times;
  }
  // Calls enough for 2 ms, so that the clock does not matter.
  static int calls_for(const std::function<void()>& fn) {
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

  void row(const Case& c, int threads, const Times& t, const char* check) const {
    const bool timed = t.ours > 0;
    const double ratio = timed ? t.theirs / t.ours : 0, rate = timed ? c.bytes / t.ours / 1e9 : 0;
    const double copy = timed ? c.bytes / t.copy / 1e9 : 0, share = timed ? rate / copy : 0;
    const std::string peer = c.peer + (reused_ ? " (memory reused)" : "");
    std::printf("%-20s %-14s %-8s %2d %10.2f %10.2f %6.2f %7.2f %7.2f %5.2f  %s, %s\n", c.op.c_str(), c.shape.c_str(),
                c.dtype.c_str(), threads, t.ours * 1e6, t.theirs * 1e6, ratio, rate, copy, share, check, peer.c_str());
    std::fflush(stdout);
    if (csv_.empty()) return;
    const bool fresh = !std::ifstream(csv_).good();
    FILE* file = std::fopen(csv_.c_str(), "a");
    if (file == nullptr) throw std::runtime_error("wanted to append to " + csv_ + "; cannot open it; check the path");
    if (fresh)
      std::fputs("op,shape,dtype,threads,device,ours_us,peer,peer_us,ratio,gbps,memcpy_gbps,share,refcheck\n", file);
    std::fprintf(file, "%s,%s,%s,%d,cpu,%.3f,%s,%.3f,%.3f,%.3f,%.3f,%.3f,%s\n", c.op.c_str(), c.shape.c_str(),
                 c.dtype.c_str(), threads, t.ours * 1e6, peer.c_str(), t.theirs * 1e6, ratio, rate, copy, share, check);
    std::fclose(file);
  }

  std::string csv_, filter_;
  std::vector<int> threads_{1, 2};
  int rounds_ = 11, failures_ = 0;
  bool reused_ = true;
};

inline double relative_l2(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  return ((a - b).norm() / b.norm()).item<double>();
}
inline const char* short_name(at::ScalarType dtype) {
  return dtype == at::kFloat ? "float32" : dtype == at::kBFloat16 ? "bfloat16" : "float16";
}

}  // namespace kernels::bench
