// The adapters' ops (foreign.h): our schemas in front, the package's own ops behind, called boxed, because a package
// may have registered them in either way.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <functional>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/contract/contract.h"
#include "hotswap/kernelize/foreign/foreign_impl.h"

namespace hotswap {

c10::OperatorHandle find_op(const Manifest& m, const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow((m.id + "::" + name).c_str(), "");
}

AdapterValues call_boxed(const c10::OperatorHandle& op, AdapterValues stack) {
  op.callBoxed(&stack);
  if (stack.size() != 1 || !stack[0].isTensorList()) return stack;
  const auto list = stack[0].toTensorVector();
  return {list.begin(), list.end()};
}

AdapterValues call_named(const c10::OperatorHandle& op, const NamedValues& given) {
  AdapterValues stack;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const auto found = given.find(argument.name());
    const bool has_value = found != given.end() && !found->second.isNone();
    stack.push_back(has_value ? found->second : argument.default_value().value_or(c10::IValue()));
  }
  for (const auto& [name, value] : given) {
    if (value.isNone() || op.schema().argumentIndexWithName(name)) continue;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("an argument ", name, " of ", op.schema()),
                 .got = "none",
                 .next = "use another version of the package, or the bundled one"});
  }
  return call_boxed(op, std::move(stack));
}

namespace {

using at::Tensor;
using Values = AdapterValues;

// out, of x's shape or with half of its last dimension, filled by op(out, x).
CallAdapter fills_output(const c10::OperatorHandle& op, bool half) {
  return [op, half](const AdapterArguments& a) -> Values {
    const Tensor x = a["x"].toTensor().contiguous();
    std::vector<int64_t> shape = x.sizes().vec();
    if (half) {
      if (shape.empty() || shape.back() % 2 != 0) {
        throw Error({.kind = ErrorKind::kInvalidArgument,
                     .wanted = "an even last dimension, [gate | up]",
                     .got = cat("shape [", join(shape), "]"),
                     .next = "concatenate gate and up along the last dimension"});
      }
      shape.back() /= 2;
    }
    Tensor out = at::empty(shape, x.options());
    if (out.numel() > 0) call_boxed(op, {out, x});
    return {out};
  };
}

Tensor turned(const c10::OperatorHandle& op, const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t dim,
              bool conj) {
  Tensor out = x.clone(at::MemoryFormat::Contiguous);
  if (out.numel() == 0) return out;
  const int64_t half = dim / 2;
  const Tensor first = out.narrow(-1, 0, half), second = out.narrow(-1, half, half);
  call_boxed(op, {first, second, cos, sin, first, second, conj});
  return out;
}

// backward: gradients are turned the other way.
CallAdapter turns_halves(const c10::OperatorHandle& op, bool backward) {
  return [op, backward](const AdapterArguments& a) -> Values {
    const Tensor q = a[backward ? "dq" : "q"].toTensor(), k = a[backward ? "dk" : "k"].toTensor();
    const int64_t dim = a["rotary_dim"].toInt();
    if (a["interleaved"].toBool()) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "halves, which is what this package's rotary embedding turns",
                   .got = "an interleaved embedding",
                   .next = "keep rotary_pos_emb stock, or use the bundled package hotswap/rotary"});
    }
    // One angle a pair, [1 or batch, 1, time, dim / 2], in the type of what it turns.
    const auto table = [&](const c10::IValue& value) {
      return value.toTensor().narrow(-1, 0, dim / 2).unsqueeze(1).to(q.scalar_type());
    };
    const Tensor cos = table(a["cos"]), sin = table(a["sin"]);
    return {turned(op, q, cos, sin, dim, backward), turned(op, k, cos, sin, dim, backward)};
  };
}

CallAdapter normalizes(const c10::OperatorHandle& op) {
  return [op](const AdapterArguments& a) -> Values {
    const Tensor x = a["x"].toTensor().contiguous();
    const double offset = a["offset"].toDouble();
    const Tensor weight = offset == 0 ? a["weight"].toTensor() : a["weight"].toTensor() + offset;
    if (x.numel() == 0) return {at::empty_like(x)};
    return {call_boxed(op, {x, weight, a["eps"]}).at(0)};
  };
}

// What a forward reads as theirs takes it: without gaps, in float32, sizes on value's device.
Values plain_inputs(const AdapterArguments& a) {
  const auto elements = [&](const char* name) { return a[name].toTensor().to(at::kFloat).contiguous(); };
  const auto device = a["value"].toTensor().device();
  const auto sizes = [&](const char* name) { return a[name].toTensor().to(device, at::kLong).contiguous(); };
  return {elements("value"), sizes("spatial_shapes"), sizes("level_start_index"), elements("sampling_locations"),
          elements("attention_weights")};
}

CallAdapter attends_to_pyramid(const c10::OperatorHandle& op) {
  return [op](const AdapterArguments& a) -> Values {
    const Tensor value = a["value"].toTensor(), weights = a["attention_weights"].toTensor();
    const int64_t batch = value.size(0);
    if (weights.numel() == 0 || value.numel() == 0) {
      return {at::zeros({batch, weights.size(1), value.size(2) * value.size(3)}, value.options())};
    }
    Values stack = plain_inputs(a);
    stack.emplace_back(batch);  // the images of a launch of theirs: all, which every batch is a multiple of
    return {call_boxed(op, std::move(stack))[0].toTensor().to(value.scalar_type())};
  };
}

CallAdapter attends_to_pyramid_backward(const c10::OperatorHandle& op) {
  return [op](const AdapterArguments& a) -> Values {
    const std::array<Tensor, 3> inputs = {a["value"].toTensor(), a["sampling_locations"].toTensor(),
                                          a["attention_weights"].toTensor()};
    Values gradients;
    if (inputs[0].numel() == 0 || inputs[2].numel() == 0) {
      for (const Tensor& input : inputs) gradients.emplace_back(at::zeros_like(input));
      return gradients;
    }
    Values stack = plain_inputs(a);
    stack.emplace_back(a["dy"].toTensor().to(at::kFloat).contiguous());
    stack.emplace_back(inputs[0].size(0));
    const Values found = call_boxed(op, std::move(stack));
    for (size_t i = 0; i < inputs.size(); ++i)
      gradients.emplace_back(found.at(i).toTensor().to(inputs[i].scalar_type()));
    return gradients;
  };
}

struct Counted : c10::OperatorKernel {
  Counted(CallAdapter adapter, std::shared_ptr<std::atomic<int64_t>> calls)
      : adapter_(std::move(adapter)), calls_(std::move(calls)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    ++*calls_;
    const size_t count = op.schema().arguments().size();
    Values results = adapter_({op.schema(), {stack->end() - static_cast<ptrdiff_t>(count), stack->end()}});
    torch::jit::drop(*stack, count);
    std::move(results.begin(), results.end(), std::back_inserter(*stack));
  }

 private:
  CallAdapter adapter_;
  std::shared_ptr<std::atomic<int64_t>> calls_;
};

AdaptedOps adapters_of(const Manifest& m) {
  AdaptedOps all;
  const auto add = [&](const std::string& ours, const std::string& theirs, const auto& adapt) {
    const c10::OperatorHandle op = find_op(m, theirs);
    all.emplace(ours, AdaptedOp{op, adapt(op)});
  };
  if (m.name == "activation") {
    for (const auto& [layer, entry] : m.layers) {
      const bool half = entry.contract == "act_and_mul/1";
      add(entry.ops.at("forward"), entry.ops.at("forward"), [&](const auto& op) { return fills_output(op, half); });
    }
  } else if (m.name == "rotary") {
    add("rotary", "apply_rotary", [](const auto& op) { return turns_halves(op, false); });
    add("rotary_bwd", "apply_rotary", [](const auto& op) { return turns_halves(op, true); });
  } else if (m.name == "rmsnorm") {
    add("rms_norm", "apply_rms_norm", normalizes);
  } else if (m.name == "deformable-detr") {
    add("deformable_attention", "ms_deform_attn_forward", attends_to_pyramid);
    add("deformable_attention_bwd", "ms_deform_attn_backward", attends_to_pyramid_backward);
  } else if (m.name == "causal-conv1d" || m.name == "mamba-ssm") {
    return mamba_adapters(m);
  } else {
    return attention_adapters(m);
  }
  return all;
}

c10::DispatchKey device_key(const std::string& backend) {
  static const std::map<std::string, c10::DispatchKey> keys = {{"cpu", c10::DispatchKey::CPU},
                                                               {"cuda", c10::DispatchKey::CUDA},
                                                               {"rocm", c10::DispatchKey::CUDA},
                                                               {"metal", c10::DispatchKey::MPS},
                                                               {"xpu", c10::DispatchKey::XPU}};
  const auto key = keys.find(backend);
  if (key != keys.end()) return key->second;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "a package for cpu, cuda, rocm, metal or xpu",
               .got = backend,
               .next = "use another"});
}

// Types of arguments and results and what is written to; names are theirs to choose.
bool fits(const c10::FunctionSchema& got, const c10::FunctionSchema& wanted) {
  const auto same = [](const c10::Argument& a, const c10::Argument& b) {
    const bool a_writes = a.alias_info() && a.alias_info()->isWrite();
    const bool b_writes = b.alias_info() && b.alias_info()->isWrite();
    return a.type()->str() == b.type()->str() && a_writes == b_writes;
  };
  const auto all = [&](const auto& a, const auto& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
  };
  return all(got.arguments(), wanted.arguments()) && all(got.returns(), wanted.returns());
}

void check_theirs(const Manifest& m, const ForeignPackage& package) {
  std::vector<std::string> wrong;
  for (const ForeignOp& op : package.ops) {
    const auto handle = c10::Dispatcher::singleton().findSchema({m.id + "::" + op.name, ""});
    if (!handle) {
      wrong.push_back(cat("op ", m.id, "::", op.name, " is not registered"));
      continue;
    }
    const bool known = std::any_of(op.schemas.begin(), op.schemas.end(), [&](const std::string& schema) {
      return fits(handle->schema(), torch::jit::parseSchema(cat(op.name, schema)));
    });
    if (!known) wrong.push_back(cat(handle->schema(), ", where ", op.name, op.schemas.front(), " is known"));
  }
  if (wrong.empty()) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("the ops of ", m.name, " as its adapter knows them, in ", m.library().string()),
               .got = join(wrong, "; "),
               .next = "use another version of the package, or the bundled one"});
}

}  // namespace

void register_adapter(const Manifest& m) {
  const auto all = foreign_packages();
  check_theirs(m, *std::find_if(all.begin(), all.end(), [&](const ForeignPackage& p) { return m.name == p.name; }));
  const c10::DispatchKey key = device_key(m.backend);

  auto calls = std::make_shared<std::map<std::string, std::shared_ptr<std::atomic<int64_t>>>>();
  // Never destroyed: graphs may hold its ops until the very end.
  auto* library = new torch::Library(torch::Library::DEF, m.adapter, std::nullopt, __FILE__, __LINE__);
  std::set<std::string> defined;
  const auto adapters = adapters_of(m);
  for (const auto& [layer, entry] : m.layers) {
    for (const auto& [role, op] : entry.ops) {
      if (!defined.insert(op).second) continue;
      auto counter = (*calls)[op] = std::make_shared<std::atomic<int64_t>>(0);
      library->def(torch::jit::parseSchema(op + find_contract(entry.contract)->roles.at(role).schema));
      const AdaptedOp& adapted = adapters.at(op);
      // A variant may define an op and have no kernel for it; then ours has none either, and the layer stays stock.
      if (!adapted.theirs.hasComputedKernelForDispatchKey(key)) continue;
      library->impl(op.c_str(), torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(
                                                         std::make_unique<Counted>(adapted.adapter, counter))));
    }
  }
  library->def("call_count(str op) -> int");
  library->impl("call_count", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                              torch::CppFunction([calls](std::string_view op) -> int64_t {
                                                const auto found = calls->find(std::string(op));
                                                if (found != calls->end()) return *found->second;
                                                throw Error({.kind = ErrorKind::kInternal,
                                                             .wanted = "an op of this adapter",
                                                             .got = "'" + std::string(op) + "'",
                                                             .next = "pass the name of one"});
                                              })));
}

}  // namespace hotswap
