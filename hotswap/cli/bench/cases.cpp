#include "hotswap/cli/bench/cases.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/randn_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <map>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/bind/regular.h"
#include "hotswap/kernelize/example/example.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

using at::Tensor;
using Values = std::vector<c10::IValue>;

// An op in a role of a layer.
struct Place {
  const Manifest* manifest;
  std::string layer, role;
};

const std::map<std::string, Place>& places() {
  static const std::vector<Manifest> bundled = bundled_packages();
  static const auto all = [] {
    std::map<std::string, Place> found;
    for (const char* role : {"forward", "forward_train", "backward"}) {  // one op may have the first two
      for (const Manifest& manifest : bundled) {
        if (manifest.backend != "cpu") continue;
        for (const auto& [layer, entry] : manifest.layers) {
          const auto op = entry.ops.find(role);
          if (op == entry.ops.end()) continue;
          const Contract* contract = find_contract(entry.contract);
          const bool returns = contract == nullptr || !contract->roles.at(role).schema.ends_with("-> ()");
          if (returns)
            found.try_emplace(op->second, Place{&manifest, layer, role});  // else there is nothing to compare
        }
      }
    }
    return found;
  }();
  return all;
}

Tensors called(const std::string& op, Values stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), "").callBoxed(&stack);
  Tensors results;
  for (const c10::IValue& value : stack) results.push_back(value.toTensor());
  return results;
}

// An op's arguments out of a contract's example, found by their names in the contract's schemas.
class Call {
 public:
  Call(const PackageLayer& layer, std::string role, LayerExample example, at::ScalarType dtype)
      : layer_(layer), role_(std::move(role)), example_(std::move(example)) {
    for (c10::IValue& value : example_.arguments) {
      if (value.isTensor() && value.toTensor().is_floating_point()) value = value.toTensor().to(dtype);
    }
    const auto forward = schema("forward");
    for (size_t i = 0; i < example_.arguments.size(); ++i) {
      known_[forward.arguments()[i].name()] = example_.arguments[i];
    }
    if (role_ != "backward") return;
    const auto train = schema("forward_train");
    const Tensors results = called(layer_.op("forward_train"), arguments("forward_train"));
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string name = train.returns()[i].name();
      if (i < forward.returns().size()) {
        gradients_.push_back(at::randn_like(results[i]));
        known_["d" + name] = gradients_.back();
      }
      known_.try_emplace(name, results[i]);
    }
  }

  Values arguments() const { return arguments(role_); }

  // With gradients where the op gives some.
  std::function<Tensors()> peer() const {
    const auto stock = example_.stock;
    Values values = example_.arguments;
    if (role_ == "backward") {
      const Tensors leaves = with_leaves(values);
      return [outputs = stock(values), leaves, gradients = gradients_] {
        return torch::autograd::grad(outputs, leaves, gradients, /*retain_graph=*/true);
      };
    }
    if (with_leaves(values).empty()) return [stock, values] { return stock(values); };
    return [this_call = *this, stock] {
      Values fresh = this_call.example_.arguments;
      const Tensors leaves = this_call.with_leaves(fresh), loss = stock(fresh);
      Tensors out = {loss[0].detach()};
      for (Tensor& gradient : torch::autograd::grad(loss, leaves)) out.push_back(std::move(gradient));
      return out;
    };
  }

  // A gradient is two products of the size of the forward's one.
  double flops() const {
    Values values = example_.arguments;
    const double gradients = with_leaves(values).empty() ? 0 : 2;
    return example_.flops * ((role_ == "backward" ? 0 : 1) + gradients);
  }

 private:
  c10::FunctionSchema schema(const std::string& role) const {
    return torch::jit::parseSchema("op" + layer_.contract().roles.at(role).schema);
  }

  Values arguments(const std::string& role) const {
    Values values;
    const auto wanted = schema(role);
    for (const c10::Argument& argument : wanted.arguments()) {
      const auto found = known_.find(argument.name());
      if (found != known_.end()) {
        // what the op writes is its own: the other side starts from the same
        const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
        values.push_back(is_written ? found->second.toTensor().clone() : found->second);
      } else if (argument.name().starts_with("with_")) {
        values.emplace_back(!known_.at(argument.name().substr(5)).isNone());
      } else if (argument.name() == "weight_grads") {  // as in training
        values.emplace_back(true);
      } else if (argument.default_value()) {
        values.push_back(*argument.default_value());
      } else if (argument.type()->kind() == c10::TypeKind::OptionalType) {  // a gradient that nobody asks for
        values.emplace_back();
      } else if (argument.type()->kind() == c10::TypeKind::BoolType) {  // a choice that the example does not make
        values.emplace_back(false);
      } else {
        throw Error({.kind = ErrorKind::kInternal,
                     .wanted = cat("an example of ", layer_.contract().name, " with all that its op ", role, " takes"),
                     .got = cat("none for ", argument.name()),
                     .next = "add it to the contract's example in hotswap/kernelize/bind/"});
      }
    }
    return values;
  }

  // Puts leaves in the place of those arguments whose gradients the op's results are, and returns them in that order.
  Tensors with_leaves(Values& values) const {
    Tensors leaves;
    const auto forward = schema("forward"), own = schema(role_);
    for (const c10::Argument& result : own.returns()) {
      for (size_t i = 0; i < values.size(); ++i) {
        if (!values[i].isTensor() || !binding::is_gradient_of(result.name(), forward.arguments()[i].name())) continue;
        leaves.push_back(values[i].toTensor().detach().set_requires_grad(true));
        values[i] = leaves.back();
        break;  // dx_and_residual is that of both
      }
    }
    return leaves;
  }

  const PackageLayer& layer_;
  std::string role_;
  LayerExample example_;
  std::map<std::string, c10::IValue> known_;
  Tensors gradients_;
};

}  // namespace

std::vector<std::string> bench_ops() {
  std::vector<std::string> names;
  for (const auto& [op, place] : places()) names.push_back(op);
  return names;
}

OpCase make_case(const std::string& op, const CaseSize& size) {
  const auto found = places().find(op);
  if (found == places().end()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("an op of ", join(bench_ops())),
                 .got = "'" + op + "'",
                 .next = "name one of these, or none for all"});
  }
  const auto& [manifest, layer_name, role] = found->second;
  const PackageLayer& layer = load_package(*manifest).layer(layer_name);
  const ContractExample& maker = example_of(layer.contract());
  auto example = maker.make(layer_name, size.large ? maker.large : maker.small);
  if (!example) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("example inputs for ", layer.str(), ", to run its op on"),
                 .got = example.why(),
                 .next = "name other ops of the package (--list shows them)"});
  }
  const Call call(layer, role, *example, size.dtype);
  return {.op = op,
          .qualified = layer.op(role),
          .shape = example->shape,
          .dtype = dtype_name(size.dtype),
          .arguments = call.arguments(),
          .peer = call.peer(),
          .flops = call.flops()};
}

}  // namespace hotswap
