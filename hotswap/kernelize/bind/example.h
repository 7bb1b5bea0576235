// The example of a contract: fresh inputs of a size, the stock forward that they go through, and the same in float64.
// What `kernel bench`, `hotswap bench` and bind_test hold a package's layer against.
//
//   const Result<Example> example = layer.contract().example("RMSNorm", {.rows = 8, .dim = 16});
//   example->stock(example->arguments);
//   example->bound(layer)(example->arguments);                        // through a slot
#pragma once

#include <functional>
#include <memory>

#include "hotswap/kernelize/bind/regular.h"

namespace hotswap {

using Tensors = std::vector<Tensor>;
using ExampleForward = std::function<Tensors(const std::vector<c10::IValue>& arguments)>;

struct Example {
  std::string shape;                   // "1024x1024", for people
  std::vector<c10::IValue> arguments;  // of the contract's forward, in its order; numbers in tensors are float32
  size_t trained = 0;                  // so many of the first tensors of numbers have a gradient
  ExampleForward stock;                // of arguments in any dtype
  ExampleForward exact;                // of arguments in float64
  std::function<ExampleForward(const LayerOps&)> bound;
  double flops = 0;  // of a forward, where arithmetic is what it costs and not memory
};

namespace binding {

Tensor random(at::IntArrayRef shape);  // normal, float32

// The arguments of a slot's forward, out of an op's: push()'s other way round.
template <typename T>
void take(const Values& values, size_t& next, T& out) {
  out = values[next++].to<T>();
}
inline void take(const Values& values, size_t& next, std::optional<Tensor>& out) {
  const c10::IValue& value = values[next++];
  out = value.isNone() ? std::nullopt : std::optional(value.toTensor());
}

inline Tensors listed(const Tensor& result) { return {result}; }
template <typename... Ts>
Tensors listed(const std::tuple<Ts...>& results) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, results);
}

template <typename Forward, typename R, typename... Args>
Tensors call(const Forward& forward, const Values& values, R (*)(Args...)) {
  size_t next = 0;
  std::tuple<std::decay_t<Args>...> arguments;
  std::apply([&](auto&... each) { (take(values, next, each), ...); }, arguments);
  return listed(std::apply(forward, arguments));
}

// A layer behind a slot of its own, outside of any model.
template <typename Signature>
struct BoundLayer : Module {
  BoundLayer(const LayerOps& layer, std::function<Signature> stock)
      : slot(this, layer.str(), layer.contract().name, std::move(stock)) {
    layer.contract().bind(slot, layer);
  }
  Slot<Signature> slot;
};

// exact: where the stock forward computes in float32 whatever it is given.
template <typename Signature>
Example make_example(std::function<Signature> stock, Values arguments, std::function<Signature> exact = nullptr) {
  Example example;
  for (const c10::IValue& value : arguments) {
    if (value.isTensor() && value.toTensor().is_floating_point()) ++example.trained;
  }
  example.shape = join(arguments[0].toTensor().sizes(), "x");
  example.arguments = std::move(arguments);
  constexpr Signature* kForm = nullptr;  // says R and Args
  example.stock = [stock](const Values& values) { return call(stock, values, kForm); };
  example.exact = example.stock;
  if (exact) example.exact = [exact](const Values& values) { return call(exact, values, kForm); };
  example.bound = [stock](const LayerOps& layer) -> ExampleForward {
    const auto module = std::make_shared<BoundLayer<Signature>>(layer, stock);
    return [module](const Values& values) { return call(module->slot, values, kForm); };
  };
  return example;
}

}  // namespace binding
}  // namespace hotswap
