// The ops' own tests under CUDA graph capture: HOTSWAP_TEST_GRAPH=1 HOTSWAP_TEST_DEVICE=cuda norm_test.
// Package::call then captures each call on a stream of its own, overwrites what it returned, and runs the graph: the
// numbers that a test compares are the replay's. What a call may not do while it is captured (wait, copy to the host,
// use another stream) ends the test.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/common/testing/test_device.h"

namespace kernels {

inline bool in_graphs() {
  static const bool wanted = [] {
    const char* text = std::getenv("HOTSWAP_TEST_GRAPH");
    return text != nullptr && std::string(text) == "1";
  }();
  return wanted;
}

// A function of the CUDA runtime that torch's CUDA half brought along: this program is not linked with it. Handles are
// pointers, results are 0 where all is well.
template <class... Args>
void runtime(const char* name, Args... args) {
  const auto fn = reinterpret_cast<int (*)(Args...)>(dlsym(RTLD_DEFAULT, name));
  if (fn == nullptr) throw std::runtime_error(std::string(name) + ": no such function in this process");
  if (const int code = fn(args...))
    throw std::runtime_error(std::string(name) + ": CUDA error " + std::to_string(code));
}

class GraphStream {
 public:
  GraphStream() : guard_(c10::impl::getDeviceGuardImpl(c10::kCUDA)), stream_(guard_->getNewStream(test_device())) {
    // What cuBLAS makes once for a stream is made before anything is captured.
    const c10::Stream before = guard_->exchangeStream(stream_);
    const at::Tensor one = at::ones({16, 16}, at::device(test_device()).dtype(at::kBFloat16));
    one.mm(one);
    guard_->exchangeStream(before);
  }

  void call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) {
    constexpr int kRelaxed = 2;  // the allocator may ask for memory
    void *graph = nullptr, *run = nullptr;
    void* const handle = stream_.native_handle();
    guard_->synchronizeDevice(test_device().index());
    const c10::Stream before = guard_->exchangeStream(stream_);
    runtime("cudaStreamBeginCapture", handle, kRelaxed);
    try {
      op.callBoxed(stack);
    } catch (...) {  // a refusal: nothing was launched
      runtime("cudaStreamEndCapture", handle, &graph);
      runtime("cudaGraphDestroy", graph);
      guard_->exchangeStream(before);
      throw;
    }
    runtime("cudaStreamEndCapture", handle, &graph);
    if (!op.schema().is_mutable()) {
      for (c10::IValue& v : stack)
        if (v.isTensor() && v.toTensor().defined() && v.toTensor().is_floating_point())
          v.toTensor().fill_(std::numeric_limits<float>::quiet_NaN());
    }
    runtime("cudaGraphInstantiateWithFlags", &run, graph, 0ull);
    runtime("cudaGraphLaunch", run, handle);
    guard_->exchangeStream(before);
    guard_->synchronizeDevice(test_device().index());
    runtime("cudaGraphExecDestroy", run);
    runtime("cudaGraphDestroy", graph);
  }

 private:
  const c10::impl::DeviceGuardImplInterface* guard_;
  c10::Stream stream_;
};

inline void call_in_graph(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) {
  static GraphStream stream;
  stream.call(op, stack);
}

}  // namespace kernels
