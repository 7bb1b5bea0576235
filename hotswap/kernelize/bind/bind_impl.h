// For contracts whose names do not say how to bind them (regular.h): typed handles of a layer's ops, and
// what gradients need.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "hotswap/kernelize/bind/backward_impl.h"
#include "hotswap/kernelize/bind/regular.h"
#include "hotswap/layers/differentiable.h"

namespace hotswap::binding {

using OptTensor = std::optional<Tensor>;
using String = std::string_view;

template <typename Signature>
std::optional<c10::TypedOperatorHandle<Signature>> typed_op(const LayerOps& layer, const char* role) {
  const std::string name = layer.op(role);
  if (name.empty()) return std::nullopt;
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").typed<Signature>();
}

// A layer's ops, looked up once.
template <typename ForwardSignature, typename TrainSignature, typename BackwardSignature>
struct Ops {
  explicit Ops(const LayerOps& layer)
      : layer(layer),
        forward(*typed_op<ForwardSignature>(layer, "forward")),
        train(typed_op<TrainSignature>(layer, "forward_train")),
        backward(typed_op<BackwardSignature>(layer, "backward")) {}
  bool trains() const { return layer.trains(); }

  const LayerOps& layer;
  c10::TypedOperatorHandle<ForwardSignature> forward;
  std::optional<c10::TypedOperatorHandle<TrainSignature>> train;
  std::optional<c10::TypedOperatorHandle<BackwardSignature>> backward;
};

// Kept for the life of the process, as packages are: an autograd graph may outlive the slot that made it.
template <typename OpsType>
const OpsType* ops_of(const LayerOps& layer) {
  static std::mutex mutex;
  static auto* all = new std::map<const LayerOps*, std::unique_ptr<OpsType>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& ops = (*all)[&layer];
  if (!ops) ops = std::make_unique<OpsType>(layer);
  return ops.get();
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
inline c10::IValue optional(const Tensor& tensor) { return tensor.defined() ? c10::IValue(tensor) : c10::IValue(); }

template <typename OpType, typename... Args>
auto below_autograd(const OpType& op, Args&&... args) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(std::forward<Args>(args)...);
}

}  // namespace hotswap::binding
