#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace hotswap::tokenizers {

// Calls work(0) to work(count - 1) on up to `threads` threads, this one included; 0: one per core. Each thread has a
// work of its own by make_work(), which may keep what only one thread uses. The first exception ends all and is thrown
// here.
template <class MakeWork>
void parallel_for(size_t count, int threads, const MakeWork& make_work) {
  constexpr size_t kBlock = 8;  // indices that a thread takes at a time
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    try {
      const auto work = make_work();
      for (size_t begin = next.fetch_add(kBlock); begin < count; begin = next.fetch_add(kBlock)) {
        for (size_t i = begin; i < std::min(begin + kBlock, count); ++i) work(i);
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  const size_t limit = threads > 0 ? static_cast<size_t>(threads) : std::max(std::thread::hardware_concurrency(), 1u);
  std::vector<std::jthread> others(std::min(limit, (count + kBlock - 1) / kBlock));
  for (size_t i = 1; i < others.size(); ++i) others[i] = std::jthread(run);
  run();
  others.clear();  // joins
  if (error) std::rethrow_exception(error);
}

}  // namespace hotswap::tokenizers
