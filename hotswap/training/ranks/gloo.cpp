// Gloo, which torch has in libtorch_cpu and whose own headers it does not bring: those of gloo_headers/ declare what
// c10d's header mentions of it.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "hotswap/training/ranks/ranks_impl.h"

namespace hotswap {

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) {
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size,
                                                     c10d::ProcessGroupGloo::Options::create_default(timeout));
}

}  // namespace hotswap
