// Runs device code on the CPU, where no GPU is: a block's threads are fibers of one thread of the CPU, which take turns
// at barriers and shuffles. Instead of nvcc's headers a test includes those of this folder, and then the .cu file
// itself.
//
// What a block's threads share (`__shared__`) is thread_local: a variable of the one CPU thread that runs them all.
// Found beside wrong results: a shuffle whose mask names a lane that is not there, threads that wait at different
// barriers for ever, and, by running a launch with its threads in another order, most races.
// Not emulated: clusters, wgmma, TMA, mma, and time.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 64 << 10;

// In which order the threads of a block run between two barriers.
enum class Order { kAscending, kDescending, kMixed };
inline Order order = Order::kAscending;

enum class Waits { kNot, kAtBarrier, kAtShuffle, kEnded };

struct Thread {
  ucontext_t start;  // its first run; jumps after that, also to later blocks: contexts call the kernel of the system
  jmp_buf here;
  bool started = false;
  std::unique_ptr<char[]> stack;
  Waits waits = Waits::kNot;
  int barrier = 0;     // that it waits at
  int needs = 0;       // threads there; 0: all that have not ended
  unsigned mask = 0;   // of the shuffle that it waits at
  uint64_t value = 0;  // that it brings there
};

class Block {
 public:
  // Runs `kernel` once for each of `threads` threads of the block `index`.
  void run(const std::function<void()>& kernel, dim3 index, dim3 threads);

  // Until `threads` threads wait at barrier `id`, or all that have not ended (0).
  void barrier(int id = 0, int threads = 0) {
    threads_[at_].barrier = id, threads_[at_].needs = threads;
    wait(Waits::kAtBarrier);
  }
  // The value that lane `from` of this warp brought; all lanes of `mask` take part.
  uint64_t shuffle(unsigned mask, uint64_t value, int from);
  int lane() const { return at_ % kWarp; }
  // The lanes of `mask`, all of which take part, that brought something else than 0.
  unsigned ballot(unsigned mask, bool value) {
    shuffle(mask, value, lane());
    unsigned out = 0;
    for (int other = 0; other < kWarp; ++other)
      if ((mask >> other & 1) != 0 && brought_[at_ - lane() + other] != 0) out |= 1u << other;
    return out;
  }

 private:
  void wait(Waits what) {
    threads_[at_].waits = what;
    if (_setjmp(threads_[at_].here) == 0) _longjmp(main_, 1);
  }
  static void make(Thread& t);
  void resume(int thread);
  void release_barriers();
  void release_shuffles();
  static void enter();

  std::vector<Thread> threads_;
  std::vector<uint64_t> brought_;  // to the shuffle that was released last, by thread
  const std::function<void()>* kernel_ = nullptr;
  jmp_buf main_;
  int count_ = 0, at_ = 0;
  std::exception_ptr error_;
};

inline Block block;

inline void Block::enter() {
  for (;;) {  // once a block
    try {
      (*block.kernel_)();
    } catch (...) {
      block.error_ = std::current_exception();
    }
    block.wait(Waits::kEnded);
  }
}

inline void Block::make(Thread& t) {
  if (!t.stack) t.stack = std::make_unique<char[]>(kStackBytes);
  getcontext(&t.start);
  t.start.uc_stack = {.ss_sp = t.stack.get(), .ss_flags = 0, .ss_size = kStackBytes};
  t.start.uc_link = nullptr;
  makecontext(&t.start, &Block::enter, 0);
  t.started = false;
}

inline void Block::resume(int thread) {
  Thread& t = threads_[thread];
  at_ = thread;
  threadIdx = {unsigned(thread), 0, 0};
  if (_setjmp(main_) != 0) return;
  if (t.started) _longjmp(t.here, 1);
  t.started = true;
  setcontext(&t.start);
}

inline uint64_t Block::shuffle(unsigned mask, uint64_t value, int from) {
  const int lane = at_ % kWarp, mine = at_;
  if ((mask >> lane & 1) == 0)
    throw std::runtime_error("expected a shuffle's mask with its own lane " + std::to_string(lane) + " in it");
  threads_[mine].mask = mask, threads_[mine].value = value;
  wait(Waits::kAtShuffle);
  return (mask >> from & 1) != 0 ? brought_[mine - lane + from] : value;
}

inline void Block::release_barriers() {
  constexpr int kBarriers = 16;
  int there[kBarriers] = {}, live = 0;
  for (int i = 0; i < count_; ++i) {
    live += threads_[i].waits != Waits::kEnded;
    if (threads_[i].waits == Waits::kAtBarrier) ++there[threads_[i].barrier];
  }
  for (int i = 0; i < count_; ++i) {
    Thread& t = threads_[i];
    if (t.waits == Waits::kAtBarrier && there[t.barrier] == (t.needs > 0 ? t.needs : live)) t.waits = Waits::kNot;
  }
}

inline void Block::release_shuffles() {
  for (int warp = 0; warp < count_; warp += kWarp) {
    const int lanes = std::min(kWarp, count_ - warp);
    for (int lane = 0; lane < lanes; ++lane) {
      const Thread& t = threads_[warp + lane];
      if (t.waits != Waits::kAtShuffle) continue;
      bool all = true;
      for (int other = 0; other < kWarp; ++other) {
        if ((t.mask >> other & 1) == 0) continue;
        all = all && other < lanes && threads_[warp + other].waits == Waits::kAtShuffle &&
              threads_[warp + other].mask == t.mask;
      }
      if (!all) continue;
      const unsigned mask = t.mask;
      for (int other = 0; other < lanes; ++other) {
        if ((mask >> other & 1) == 0) continue;
        brought_[warp + other] = threads_[warp + other].value;
        threads_[warp + other].waits = Waits::kNot;
      }
    }
  }
}

inline void Block::run(const std::function<void()>& kernel, dim3 index, dim3 threads) {
  blockIdx = index;
  kernel_ = &kernel, error_ = nullptr;
  count_ = int(threads.x);
  if (int(threads_.size()) < count_) threads_.resize(count_);
  brought_.assign(count_, 0);
  for (int i = 0; i < count_; ++i) {
    const bool ended = threads_[i].waits == Waits::kEnded;  // not where a block before was left with an error
    if (!ended) make(threads_[i]);
    threads_[i].waits = Waits::kNot;
  }
  for (;;) {
    bool ran = false, ended = true;
    for (int i = 0; i < count_ && !error_; ++i) {
      const int thread = order == Order::kAscending    ? i
                         : order == Order::kDescending ? count_ - 1 - i
                                                       : (i * 37 + 11) % count_;
      if (threads_[thread].waits != Waits::kNot) continue;
      resume(thread);
      ran = true;
    }
    if (error_) std::rethrow_exception(error_);
    for (int i = 0; i < count_; ++i) ended = ended && threads_[i].waits == Waits::kEnded;
    if (ended) return;
    if (!ran)
      throw std::runtime_error(
          "expected all threads of a block at its barrier, and all lanes of a shuffle's mask at that "
          "shuffle; some wait elsewhere or have ended");
    release_shuffles();
    release_barriers();
  }
}

// One block after the other.
inline void run_grid(const std::function<void()>& kernel, dim3 blocks, dim3 threads) {
  gridDim = blocks, blockDim = threads;
  for (unsigned y = 0; y < blocks.y; ++y)
    for (unsigned x = 0; x < blocks.x; ++x) block.run(kernel, {x, y, 0}, threads);
}

}  // namespace emulated

// ---- what nvcc knows without a header
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ thread_local
#define __launch_bounds__(...)
#define __grid_constant__
using std::isfinite;
using std::max;
using std::min;

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct uint2 {
  uint32_t x, y;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline void __syncthreads() { emulated::block.barrier(); }
template <class T>
T __shfl_sync(unsigned mask, T v, int from, int width = emulated::kWarp) {
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof(T));
  const int lane = emulated::block.lane();
  bits = emulated::block.shuffle(mask, bits, lane - lane % width + from % width);
  std::memcpy(&v, &bits, sizeof(T));
  return v;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int other) {
  return __shfl_sync(mask, v, emulated::block.lane() ^ other);
}
inline bool __any_sync(unsigned mask, bool value) { return emulated::block.ballot(mask, value) != 0; }
inline bool __all_sync(unsigned mask, bool value) { return emulated::block.ballot(mask, value) == mask; }
inline unsigned __ballot_sync(unsigned mask, bool value) { return emulated::block.ballot(mask, value); }
inline void __threadfence_block() {}
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float v) { return std::exp(v); }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float v) { return std::sqrt(v); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float rsqrtf(float v) { return 1.f / std::sqrt(v); }
inline float __uint_as_float(uint32_t bits) {
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
}
inline uint32_t __float_as_uint(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return bits;
}
inline uint4 __ldcs(const uint4* p) { return *p; }
inline void __stwb(uint4* p, uint4 v) { *p = v; }
inline void __stcs(uint4* p, uint4 v) { *p = v; }
