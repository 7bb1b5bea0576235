// The values of a slot's forward and those of an op, each in terms of the other. A struct of options has both functions
// in arguments.h, in namespace hotswap.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "hotswap/layers/weight.h"

namespace hotswap::binding {

using Values = std::vector<c10::IValue>;

// As an op takes them.
template <typename T>
void push(Values& values, const T& value) {
  values.emplace_back(value);
}
// An undefined tensor is how a layer without bias passes it.
inline void push(Values& values, const std::optional<Tensor>& tensor) {
  values.emplace_back(tensor && tensor->defined() ? c10::IValue(*tensor) : c10::IValue());
}

// And back, one after another.
template <typename T>
void take(const Values& values, size_t& next, T& out) {
  out = values[next++].to<T>();
}
inline void take(const Values& values, size_t& next, std::optional<Tensor>& out) {
  const c10::IValue& value = values[next++];
  out = value.isNone() ? std::nullopt : std::optional(value.toTensor());
}

}  // namespace hotswap::binding
