// Work over torch's own threads. at::parallel_for's header runs on one thread unless its caller is compiled with
// OpenMP, and linking OpenMP would bring a second runtime beside torch's; libtorch's C entry does neither.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>

namespace hotswap {

// fn(first, last) over parts of [begin, end), each of `grain` at least. fn must not throw.
template <typename Fn>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Fn& fn) {
  const auto part = [](int64_t first, int64_t last, void* context) { (*static_cast<const Fn*>(context))(first, last); };
  torch_parallel_for(begin, end, grain, part, const_cast<Fn*>(&fn));
}

}  // namespace hotswap
