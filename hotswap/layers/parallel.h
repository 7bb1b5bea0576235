// Work over torch's own threads. at::parallel_for's header runs on one thread unless its caller is compiled with
// OpenMP, and linking OpenMP would bring a second runtime beside torch's; libtorch's C entry does neither.
#pragma once

#include <cstdint>
#include <functional>

namespace hotswap {

// part(first, last) over parts of [begin, end), each of `grain` at least. part must not throw.
void parallel_for(int64_t begin, int64_t end, int64_t grain, const std::function<void(int64_t, int64_t)>& part);

}  // namespace hotswap
