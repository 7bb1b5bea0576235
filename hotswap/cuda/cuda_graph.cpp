// libhotswap_cuda.so: what of the host needs torch's CUDA headers.
#include "hotswap/engine/cuda_graph.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>

namespace hotswap {
namespace {

// One a device for the life of the process: cuBLAS keeps memory for each stream that it has met.
c10::cuda::CUDAStream side_stream(c10::DeviceIndex device) {
  thread_local std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  return streams.try_emplace(device, c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)).first->second;
}

// What `then` is given from now on waits for what `first` has been given.
void in_turn(c10::cuda::CUDAStream first, c10::cuda::CUDAStream then) {
  at::cuda::CUDAEvent done;
  done.record(first);
  done.block(then);
}

// Up to torch 2.14 a graph is told which generators its work draws from. Since 2.15 it sees that while it is captured,
// and the function is gone.
template <typename Graph>
void register_generator(Graph& graph, const at::Generator& generator) {
  if constexpr (requires { graph.register_generator_state(generator); }) graph.register_generator_state(generator);
}

class TorchGraph : public CudaGraph {
 public:
  explicit TorchGraph(c10::DeviceIndex device) : device_(device) {}

  void warm_up(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard current(device_);
    const auto before = c10::cuda::getCurrentCUDAStream(device_), side = side_stream(device_);
    in_turn(before, side);
    {
      const c10::cuda::CUDAStreamGuard guard(side);
      work();
    }
    in_turn(side, before);
  }

  void draws_from(const at::Generator& generator) override {
    const c10::cuda::CUDAGuard current(device_);  // torch allocates what a replay draws from on the current device
    register_generator(graph_, generator);
  }

  void capture(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard current(device_);
    const auto before = c10::cuda::getCurrentCUDAStream(device_), side = side_stream(device_);
    in_turn(before, side);
    const c10::cuda::CUDAStreamGuard guard(side);
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();  // the stream must leave the capture
      } catch (const c10::Error&) {
        // which is void: the error that made it so is the one to report
      }
      throw;
    }
    graph_.capture_end();
    // torch prepares random numbers on this stream, and a replay overwrites that on the other.
    in_turn(side, before);
  }

  void replay() override {
    const c10::cuda::CUDAGuard current(device_);
    graph_.replay();
  }

 private:
  c10::DeviceIndex device_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace
}  // namespace hotswap

extern "C" hotswap::CudaGraph* hotswap_make_cuda_graph(c10::DeviceIndex device) {
  return new hotswap::TorchGraph(device);
}
