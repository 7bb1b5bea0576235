#include "hotswap/training/memory_estimate.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/remainder.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/layers/linear.h"
#include "hotswap/models/config.h"
#include "hotswap/training/live_memory.h"

namespace hotswap {
namespace {

constexpr int64_t kProbed = 192;  // tokens of the longest row that is probed, and a multiple of what kernels block by

// Restores the generators that layers draw of.
class KeptGenerators {
 public:
  explicit KeptGenerators(at::Device device) : kept_{state_of(at::kCPU)} {
    if (!device.is_cpu()) kept_.push_back(state_of(device));
  }
  ~KeptGenerators() {
    for (const auto& [device, state] : kept_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }
  KeptGenerators(const KeptGenerators&) = delete;
  KeptGenerators& operator=(const KeptGenerators&) = delete;

 private:
  static std::pair<at::Device, Tensor> state_of(at::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    return {device, generator.get_state()};
  }
  std::vector<std::pair<at::Device, Tensor>> kept_;
};

// What one row of that length keeps for its backward.
int64_t kept_bytes(CausalLM& model, int64_t length) {
  const auto ids = at::arange(length, at::TensorOptions(at::kLong).device(model.device()))
                       .remainder(model.config().vocab_size)
                       .view({1, length});
  const LiveMemory memory;
  const Tensor loss = model({.input_ids = ids, .labels = ids}).loss;  // and its graph
  return memory.now();
}

// The polynomial of degree two through three points that are `apart`, 2 * apart and 3 * apart from 0.
double at_length(const std::array<double, 3>& kept, double apart, double length) {
  const double x = length / apart;
  return kept[0] * (x - 2) * (x - 3) / 2 - kept[1] * (x - 1) * (x - 3) + kept[2] * (x - 1) * (x - 2) / 2;
}

int64_t activation_bytes(CausalLM& model, const StepShape& shape) {
  const at::AutoGradMode with_gradients(true);
  const KeptGenerators generators(model.device());
  const int64_t apart = std::max<int64_t>(1, std::min(kProbed, shape.length) / 3);
  kept_bytes(model, apart);  // tables that a model makes once, such as the rotary embedding's, are no step's
  std::array<double, 3> kept{};
  for (int i = 0; i < 3; ++i) kept[i] = static_cast<double>(kept_bytes(model, apart * (i + 1)));
  const auto size = static_cast<double>(apart), length = static_cast<double>(shape.length);
  const double once = at_length(kept, size, 0);
  return static_cast<int64_t>(once + static_cast<double>(shape.rows) * (at_length(kept, size, length) - once));
}

// Where a kernel makes the loss of hidden states, the logits of a chunk: 512 rows of float32 or 1024 of 16 bits on a
// CPU, 256 MiB on a GPU (kernels/loss), and in 16 bits the weight's gradient in float32. Of a frozen head the logits of
// 64 or 512 MiB and their gradients (kernelize/bind/loss.cpp). Without such a kernel the gradients of all logits and of
// their log_softmax, in float32.
int64_t head_bytes(CausalLM& model, const StepShape& shape) {
  const int64_t tokens = shape.rows * shape.length, vocab = model.config().vocab_size,
                element = static_cast<int64_t>(c10::elementSize(model.dtype()));
  bool bound = false;
  for (const KernelRow& row : model.kernel_report().rows) {
    bound = bound || (row.layer == "LinearCrossEntropy" && row.package.has_value());
  }
  if (!bound || !model.lm_head().fuses()) return tokens * vocab * 2 * static_cast<int64_t>(sizeof(float));
  const bool on_cpu = model.device().is_cpu();
  const auto rows_of = [&](int64_t mebibytes) { return (mebibytes << 20) / (vocab * element); };
  const Weight& head = model.lm_head().weight;
  if (!head.data.requires_grad()) {
    return 2 * std::min(tokens, std::max<int64_t>(16, rows_of(on_cpu ? 64 : 512))) * vocab * element;
  }
  const int64_t rows = on_cpu ? 2048 / element : std::max<int64_t>(128, rows_of(256));
  return std::min(tokens, rows) * vocab * element + (element == 2 ? 4 * vocab * head.columns() : 0);
}

}  // namespace

int64_t weight_bytes(CausalLM& model) {
  std::map<const void*, int64_t> bytes;  // of storages: a tied weight is one
  const auto count = [&](const std::string&, Tensor& t) {
    bytes[t.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(t.storage().nbytes());
  };
  model.each_tensor(count);
  model.each_trained(count);  // adapters
  int64_t all = 0;
  for (const auto& [storage, size] : bytes) all += size;
  return all;
}

int64_t gradient_bytes(const AdamW& optimizer) {
  int64_t bytes = 0;
  for (const Tensor& parameter : optimizer.parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
  return bytes;
}

int64_t optimizer_bytes(const AdamW& optimizer) {
  int64_t bytes = 0;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    bytes += sizeof(float);  // the count of steps, which is kept of all
    if (optimizer.owns(i)) bytes += state_bytes_of(optimizer.parameters()[i], optimizer.options().states);
  }
  return bytes;
}

int64_t library_bytes(std::optional<int64_t> capability) {
  if (!capability) return 0;
  // The size is torch's choice. How many was counted on an H200, torch 2.11: of the thread of forward, of autograd's,
  // and of a product.
  constexpr int64_t kWorkspaces = 3, kHopperOrBlackwell = int64_t{32} << 20, kOther = (2 * 4096 + 8 * 16) * 1024;
  const int64_t major = *capability / 10;
  return kWorkspaces * (major == 9 || major == 10 || major == 12 ? kHopperOrBlackwell : kOther);
}

int64_t MemoryEstimate::total() const {
  const int64_t forward = activations + head + (gradients_stay ? gradients : 0);
  return weights + optimizer + libraries + std::max(forward, gradients);
}

std::string MemoryEstimate::str() const {
  const auto gb = [](int64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", static_cast<double>(bytes) / 1e9);
    return std::string(text);
  };
  return cat("weights ", gb(weights), ", gradients ", gb(gradients), ", optimizer ", gb(optimizer), ", activations ",
             gb(activations), ", loss ", gb(head), libraries > 0 ? cat(", libraries ", gb(libraries)) : "",
             "; at once ", gb(total()), " GB");
}

MemoryEstimate estimate_memory(CausalLM& model, const AdamW& optimizer, const StepShape& shape) {
  return {.weights = weight_bytes(model),
          .gradients = gradient_bytes(optimizer),
          .optimizer = optimizer_bytes(optimizer),
          .activations = activation_bytes(model, shape),
          .head = head_bytes(model, shape),
          .libraries = library_bytes(device_capability(model.device())),
          .gradients_stay = shape.forwards > 1};
}

}  // namespace hotswap
