// Binding by the names of a contract's own schemas. For a contract of this form nothing else is written:
//
//   forward        (Tensor x, Tensor weight, float eps) -> Tensor
//   forward_train  (Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor rstd)
//   backward       (Tensor dy, Tensor x, Tensor weight, Tensor rstd) -> (Tensor dx, Tensor dweight)
//
// forward_train has forward's arguments, and gives its results and then what backward needs beside. Of backward's
// arguments `dy` is the gradient of the result y, `x` an argument of forward, `rstd` a result of forward_train, and
// `with_bias` says whether the argument bias was given; of its results `dx` is the gradient of the argument x, and
// `dx_and_residual` of both x and residual. backward_inplace, where a layer has it, writes the gradients over the
// arguments that its schema marks, and is called where nobody can read these again. A tensor whose gradient backward
// does not give may not require one.
#pragma once

#include <functional>
#include <tuple>
#include <utility>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/contract/contract.h"
#include "hotswap/kernelize/contract/values.h"
#include "hotswap/layers/slot.h"

namespace hotswap::binding {

// A layer's ops with what the names say, worked out once; kept for the life of the process, because an autograd graph
// may outlive the slot that made it.
class RegularOps;
// Is this result of a backward op ("dx", "dx_and_residual") the gradient of that argument of its forward?
bool is_gradient_of(const std::string& result, const std::string& argument);
// What of an incoming gradient the backward op reads: memory without gaps, rows of any strides, anything.
enum class Gradients { kContiguous, kRows, kAny };
const RegularOps* regular_ops(const LayerOps& layer, Gradients gradients);
// arguments: forward's, in its order; afterwards its results.
void run(const RegularOps& ops, Values& arguments);

template <typename R>
R taken(Values& results) {
  if constexpr (std::is_same_v<R, Tensor>) {
    return std::move(results[0]).toTensor();
  } else {
    return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) { return R{std::move(results[kIndex]).toTensor()...}; }
    (std::make_index_sequence<std::tuple_size_v<R>>());
  }
}

template <typename Signature>
void bind_slot(SlotBase& slot, typename Slot<Signature>::Forward forward) {
  if (auto* typed = slot.as<Signature>()) return typed->bind(std::move(forward));
  throw Error({.kind = ErrorKind::kInternal,
               .wanted = cat("the slot ", slot.layer(), " to have the C++ type of its contract ", slot.contract()),
               .got = "another one",
               .next = "give both the same one"});
}

template <typename R, typename... Args>
std::function<R(Args...)> forward_of(const RegularOps* ops, R (*)(Args...)) {
  return [ops](Args... args) {
    Values values;
    values.reserve(sizeof...(Args) + 4);
    (push(values, args), ...);
    run(*ops, values);
    return taken<R>(values);
  };
}

// What a row of the table names.
template <typename Signature, Gradients kGradients = Gradients::kContiguous>
void bind_regular(SlotBase& slot, const LayerOps& layer) {
  bind_slot<Signature>(slot, forward_of(regular_ops(layer, kGradients), static_cast<Signature*>(nullptr)));
}

}  // namespace hotswap::binding
