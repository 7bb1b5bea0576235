// Devices by name: of a model, and as a kernel mapping names them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace hotswap {

// Is there a GPU that torch can use? The first call loads libtorch's CUDA half, with which no program is linked;
// whoever wants CUDA tensors asks before torch is asked anything about CUDA.
bool cuda_available();

// Where a model may be: cpu; cuda:1 or cuda, the first GPU; or auto, a GPU where there is one. Error for another name,
// and for a GPU that there is not.
c10::Device device_named(const std::string& name);

// cpu, cuda, rocm (a HIP build's cuda), mps, xpu, tpu, npu, neuron; another name, such as meta, is no kernel's.
std::string device_kind(c10::Device device);

// major * 10 + minor of a cuda device; none where there is none to ask.
std::optional<int64_t> device_capability(c10::Device device);

}  // namespace hotswap
