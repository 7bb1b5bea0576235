// A CUDA graph of torch's: launches that are recorded once and run again as one. It belongs to one GPU, whichever is
// current when it is used. It lives in a library of its own, libhotswap_cuda.so, which is built where torch is one for
// CUDA; libhotswap needs no CUDA.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "hotswap/base/result.h"

namespace hotswap {

class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
  // Runs `work` as it will be captured, on a stream of its own: what libraries make once for a stream is made here.
  virtual void warm_up(const std::function<void()>& work) = 0;
  // Before capture: random numbers that `work` takes from it go on from replay to replay. The device's own is known.
  virtual void draws_from(const at::Generator& generator) = 0;
  // Records what `work` launches, and launches nothing. Tensors made in it live as long as the graph. Throws what work
  // throws, also c10::Error where it waits for the device.
  virtual void capture(const std::function<void()>& work) = 0;
  virtual void replay() = 0;
};

// Of launches on this GPU, whose index is given. A Reason where there is no such library.
Result<std::unique_ptr<CudaGraph>> make_cuda_graph(c10::Device device);

}  // namespace hotswap
