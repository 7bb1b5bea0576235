// What adapters are made of (foreign.h): their op, and ours in front of it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/kernelize/foreign/foreign.h"

namespace hotswap {

using AdapterValues = std::vector<c10::IValue>;

// What our op was called with, by the names in its contract's schema.
class AdapterArguments {
 public:
  AdapterArguments(const c10::FunctionSchema& schema, AdapterValues values)
      : schema_(schema), values_(std::move(values)) {}
  bool has(const std::string& name) const { return schema_.argumentIndexWithName(name).has_value(); }
  const c10::IValue& operator[](const std::string& name) const {
    return values_.at(schema_.argumentIndexWithName(name).value());
  }

 private:
  const c10::FunctionSchema& schema_;
  AdapterValues values_;
};
using CallAdapter = std::function<AdapterValues(const AdapterArguments& arguments)>;  // of our op -> its results

struct AdaptedOp {
  c10::OperatorHandle theirs;
  CallAdapter adapter;
};
using AdaptedOps = std::map<std::string, AdaptedOp>;  // by the name of ours

c10::OperatorHandle find_op(const Manifest& manifest, const std::string& name);

// Boxed, because a package may have registered it in either way. A list of tensors counts as that many results.
AdapterValues call_boxed(const c10::OperatorHandle& op, AdapterValues arguments);
// By the names of its arguments: those that are not given, or None, have their default or none. Error where the op has
// no argument of a name that something is given for.
using NamedValues = std::map<std::string, c10::IValue>;
AdapterValues call_named(const c10::OperatorHandle& op, const NamedValues& arguments);

// Those that serve attention/1: rows for foreign_packages(), and the ops of one of them.
std::vector<ForeignPackage> attention_packages();
AdaptedOps attention_adapters(const Manifest& manifest);
// Those of convolutions and scans.
std::vector<ForeignPackage> mamba_packages();
AdaptedOps mamba_adapters(const Manifest& manifest);

}  // namespace hotswap
