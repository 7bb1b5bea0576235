#include "hotswap/engine/cuda_graph.h"

#include "hotswap/base/cuda_library.h"

namespace hotswap {

Result<std::unique_ptr<CudaGraph>> make_cuda_graph(c10::Device device) {
  using Make = CudaGraph*(c10::DeviceIndex);
  static const Result<void*> make = cuda_library_symbol("hotswap_make_cuda_graph");
  if (!make) return Reason{make.why()};
  return std::unique_ptr<CudaGraph>(reinterpret_cast<Make*>(*make)(device.index()));
}

}  // namespace hotswap
