// What the bind functions share: typed handles of a layer's ops, and the host's side of autograd. Only bind_*.cpp
// include it: custom_function.h costs seconds.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/bind/bind.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/layers/forwards.h"
#include "hotswap/layers/slot.h"

namespace hotswap::binding {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptTensor = std::optional<Tensor>;
using String = std::string_view;

template <typename Signature>
std::optional<c10::TypedOperatorHandle<Signature>> typed_op(const PackageLayer& layer, const char* role) {
  const std::string name = layer.op(role);
  if (name.empty()) return std::nullopt;
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").typed<Signature>();
}

// A layer's ops, looked up once.
template <typename ForwardSignature, typename TrainSignature, typename BackwardSignature>
struct Ops {
  explicit Ops(const PackageLayer& layer)
      : layer(layer),
        forward(*typed_op<ForwardSignature>(layer, "forward")),
        train(typed_op<TrainSignature>(layer, "forward_train")),
        backward(typed_op<BackwardSignature>(layer, "backward")) {}
  bool trains() const { return layer.capabilities().backward; }

  const PackageLayer& layer;
  c10::TypedOperatorHandle<ForwardSignature> forward;
  std::optional<c10::TypedOperatorHandle<TrainSignature>> train;
  std::optional<c10::TypedOperatorHandle<BackwardSignature>> backward;
};

// Kept for the life of the process, as packages are: an autograd graph may outlive the slot that made it.
template <typename OpsType>
const OpsType* ops_of(const PackageLayer& layer) {
  static std::mutex mutex;
  static auto* all = new std::map<const PackageLayer*, std::unique_ptr<OpsType>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& ops = (*all)[&layer];
  if (!ops) ops = std::make_unique<OpsType>(layer);
  return ops.get();
}

template <typename Signature>
void bind_slot(SlotBase& slot, typename Slot<Signature>::Forward forward) {
  auto* typed = dynamic_cast<Slot<Signature>*>(&slot);
  if (typed == nullptr) {
    throw Error({.wanted = cat("the slot ", slot.layer(), " to have the C++ type of its contract ", slot.contract()),
                 .got = "another one",
                 .next = "see layers/forwards.h"});
  }
  typed->bind(std::move(forward));
}

inline bool asks_grad(const Tensor& tensor) { return tensor.requires_grad(); }
inline bool asks_grad(const OptTensor& tensor) { return tensor && tensor->defined() && tensor->requires_grad(); }

// Cheap and first: without it every call under no_grad would pay for an autograd function.
template <typename... Tensors>
bool wants_grad(const Tensors&... tensors) {
  return at::GradMode::is_enabled() && (asks_grad(tensors) || ...);
}

// An undefined tensor is how a layer without bias hands it over.
inline OptTensor given(const OptTensor& tensor) { return tensor && tensor->defined() ? tensor : std::nullopt; }

template <typename OpType, typename... Args>
auto below_autograd(const OpType& op, Args&&... args) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(std::forward<Args>(args)...);
}

// What backward needs besides tensors.
template <typename Value>
struct Kept : torch::CustomClassHolder {
  explicit Kept(Value v) : value(std::move(v)) {}
  Value value;
};

template <typename Value>
void keep(AutogradContext* ctx, Value value) {
  ctx->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<Kept<Value>>(std::move(value)));
}

template <typename Value>
Value kept(AutogradContext* ctx) {
  return static_cast<Kept<Value>&>(*ctx->saved_data.at("call").toCapsule()).value;
}

// Before a backward op runs.
inline void check_backward(const PackageLayer& layer) {
  if (!layer.capabilities().backward) {
    throw Error({.wanted = cat("a gradient through ", layer.str()),
                 .got = "a kernel without backward",
                 .next = "kernelize in Mode TRAINING, which leaves this layer stock, or unkernelize"});
  }
  if (at::GradMode::is_enabled()) {
    throw Error({.wanted = cat("a gradient of the gradient through ", layer.str()),
                 .got = "a kernel whose backward is not differentiable",
                 .next = "unkernelize for double backward (create_graph)"});
  }
}

// May a backward write its gradients over what its forward saved? Where only the graph and `saved`, the whole of
// get_saved_variables(), refer to a tensor and its memory, and no second backward comes.
inline bool may_overwrite(const variable_list& saved) {
  if (torch::autograd::get_current_graph_task_keep_graph()) return false;
  return std::all_of(saved.begin(), saved.end(), [](const Tensor& t) {
    return t.is_contiguous() && t.use_count() <= 2 && t.storage().use_count() == 1;
  });
}

// Gradients of expanded scalars and of slices come with strides that kernels do not read.
inline Tensor dense(const Tensor& gradient) { return gradient.contiguous(); }
inline Tensor dense_rows(const Tensor& gradient) {
  return gradient.dim() > 0 && gradient.stride(-1) == 1 ? gradient : gradient.contiguous();
}

}  // namespace hotswap::binding
