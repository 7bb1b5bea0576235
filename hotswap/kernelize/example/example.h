// The example of a contract: fresh inputs of a size, the stock forward that they go through, and the same in float64.
// What `kernel bench`, `hotswap bench` and bind_test hold a package's layer against.
//
//   const Result<LayerExample> example = example_of(layer.contract()).make("RMSNorm", {.rows = 8, .dim = 16});
//   example->stock(example->arguments);
//   example->bound(layer)(example->arguments);                        // through a slot
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hotswap/base/error.h"
#include "hotswap/base/result.h"
#include "hotswap/kernelize/contract/contract.h"
#include "hotswap/kernelize/contract/values.h"
#include "hotswap/layers/slot.h"

namespace hotswap {

struct ExampleSize {
  int64_t rows = 1024, dim = 1024;  // rows, or tokens, and their width: even
  int64_t out = 0;                  // the width that comes out of a projection; 0: what the contract takes
};

using Tensors = std::vector<Tensor>;
using ExampleForward = std::function<Tensors(const std::vector<c10::IValue>& arguments)>;

struct LayerExample {
  std::string shape;                   // "1024x1024", for people
  std::vector<c10::IValue> arguments;  // of the contract's forward, in its order; numbers in tensors are float32
  size_t trained = 0;                  // so many of the first tensors of numbers have a gradient
  ExampleForward stock;                // of arguments in any dtype
  ExampleForward exact;                // of arguments in float64
  std::function<ExampleForward(const LayerOps&)> bound;
  double flops = 0;  // of a forward, where arithmetic is what it costs and not memory
};

// How the layers of a contract are proved and timed.
struct ContractExample {
  const char* contract;  // "rms_norm/1"
  // Fresh inputs of that size with the stock forward that they go through. A Reason where nothing defines which
  // function the layer of that name computes.
  Result<LayerExample> (*make)(const std::string& layer, const ExampleSize& size);
  // What `hotswap bench` measures: one size that fits the L2 of a core, one larger than the LLC.
  ExampleSize small = {.rows = 128}, large = {.rows = 32768};
};
// Every contract has one.
const ContractExample& example_of(const Contract& contract);

namespace binding {

Tensor random(at::IntArrayRef shape);  // normal, float32

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
LayerExample make_example(std::function<Signature> stock, Values arguments, std::function<Signature> exact = nullptr) {
  LayerExample example;
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
