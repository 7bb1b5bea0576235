#include "hotswap/layers/parallel.h"

#include <torch/csrc/stable/c/shim.h>

#include "hotswap/base/error.h"

namespace hotswap {

void parallel_for(int64_t begin, int64_t end, int64_t grain, const std::function<void(int64_t, int64_t)>& part) {
  using Part = std::function<void(int64_t, int64_t)>;
  const auto call = [](int64_t first, int64_t last, void* context) {
    (*static_cast<const Part*>(context))(first, last);
  };
  if (torch_parallel_for(begin, end, grain, call, const_cast<Part*>(&part)) != AOTI_TORCH_SUCCESS) {
    throw Error({.kind = ErrorKind::kInternal,
                 .wanted = "a loop over torch's threads",
                 .got = "an error of libtorch",
                 .next = "see the line above"});
  }
}

}  // namespace hotswap
