#include "hotswap/layers/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr size_t kAlignment = 64;                // torch's own: a cache line, an AVX-512 vector
constexpr size_t kLarge = size_t{32} << 20;      // from here on blocks are the system's, and go back to it when freed
constexpr uintptr_t kHuge = uintptr_t{2} << 20;  // a huge page

// Fewer page faults where the system gives huge pages on request; a wish, so refusal is no error.
void ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHuge * kHuge;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// [unused | pointer that malloc gave | the tensor's bytes, aligned]
void* aligned_in(void* block) {
  const auto first = reinterpret_cast<uintptr_t>(block) + sizeof(void*);
  void* data = reinterpret_cast<void*>((first + kAlignment - 1) / kAlignment * kAlignment);
  std::memcpy(static_cast<char*>(data) - sizeof(void*), &block, sizeof(void*));
  return data;
}
// To what counts tensors' bytes on this thread, as torch's allocators report theirs.
void report_block(void* data, void* block, int64_t sign) {
  if (!c10::memoryProfilingEnabled()) return;
  const auto bytes = sign * static_cast<int64_t>(malloc_usable_size(block));
  c10::reportMemoryUsageToProfiler(data, bytes, 0, 0, c10::Device(c10::kCPU));
}

void release(void* data) {
  if (data == nullptr) return;
  void* block = nullptr;
  std::memcpy(&block, static_cast<char*>(data) - sizeof(void*), sizeof(void*));
  report_block(data, block, -1);
  std::free(block);
}

struct CompactAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    void* block = bytes > SIZE_MAX - 2 * kAlignment ? nullptr : std::malloc(bytes + kAlignment + sizeof(void*));
    if (block == nullptr) {
      throw Error({.kind = ErrorKind::kUnavailable,
                   .wanted = cat(bytes, " bytes of memory for a tensor"),
                   .got = "none left",
                   .next = "make the batch or the sequence smaller, or use a machine with more memory"});
    }
    if (bytes >= kLarge) ask_for_huge_pages(block, bytes);
    void* data = aligned_in(block);
    report_block(data, block, 1);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, size_t count) const override { std::memcpy(dest, src, count); }
};

}  // namespace

void use_compact_cpu_allocator() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLarge));
  mallopt(M_TRIM_THRESHOLD, 1 << 30);  // the heap's free top stays
#endif
  static CompactAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace hotswap
