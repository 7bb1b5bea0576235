// linear/1, packed_linear/2, and packed_linear/1 of packages that were built before it. A Linear that claims
// torch_products trains by torch's own products: a node of several projections may make them in its place.
#include "hotswap/layers/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/bind/example.h"
#include "hotswap/kernelize/bind/fields.h"

namespace hotswap {
namespace {

const binding::Fields<Weight>& weight_fields() {
  static const binding::Fields<Weight> fields = {
      {"Tensor data", &Weight::data},    {"Tensor? scales", &Weight::scales},
      {"Tensor? zeros", &Weight::zeros}, {"Tensor? global_scale", &Weight::global_scale},
      {"Tensor? table", &Weight::table}, {"Tensor? order", &Weight::order},
      {"int group", &Weight::group},     {"int group_rows", &Weight::group_rows}};
  return fields;
}

}  // namespace

// The fields, then format and columns, which are no members of their own.
static void push(binding::Values& values, const Weight& weight) {
  binding::push_fields(values, weight, weight_fields());
  values.emplace_back(std::string(name_of(weight.format)));
  values.emplace_back(weight.columns());
}

static void take(const binding::Values& values, size_t& next, Weight& out) {
  binding::take_fields(values, next, out, weight_fields());
  out.format = *weight_format_of(values[next++].toStringRef());
  out.logical_shape = {out.data.size(0), values[next++].toInt()};
}

namespace binding {
namespace {

Result<Example> linear_example(const std::string&, const ExampleSize& size) {
  const int64_t out = size.out > 0 ? size.out : size.dim;
  Example example = make_example<LinearForward>(
      stock::linear, {random({size.rows, size.dim}), random({out, size.dim}), random({out})});
  example.shape = cat(size.rows, "x", size.dim, " @ ", size.dim, "x", out);
  example.flops = 2.0 * static_cast<double>(size.rows * size.dim * out);
  return example;
}

// Blocks of Q4_1 with any codes: of 20 bytes the first four are two halves.
Weight random_q4_1(int64_t out, int64_t dim) {
  const Tensor scales = (random({out, dim / 32, 2}) * 0.02).to(at::kHalf).view(at::kByte);
  const Tensor codes = at::randint(0, 256, {out, dim / 32, 16}, at::kByte);
  return {
      .format = WeightFormat::kQ4_1, .data = at::cat({scales, codes}, -1).view({out, -1}), .logical_shape = {out, dim}};
}

Example packed_shape(Example example, const ExampleSize& size, int64_t dim, int64_t out) {
  example.trained = 0;
  example.shape = cat(size.rows, "x", dim, " @ ", dim, "x", out, " Q4_1");
  example.flops = 2.0 * static_cast<double>(size.rows * dim * out);
  return example;
}

int64_t whole_blocks(int64_t dim) { return (dim + 31) / 32 * 32; }

Result<Example> packed_example(const std::string&, const ExampleSize& size) {
  const int64_t dim = whole_blocks(size.dim), out = size.out > 0 ? size.out : dim;
  Values arguments = {random({size.rows, dim})};
  push(arguments, random_q4_1(out, dim));
  arguments.emplace_back(random({out}));
  return packed_shape(make_example<PackedLinearForward>(stock::packed_linear, std::move(arguments)), size, dim, out);
}

Result<Example> blocks_example(const std::string&, const ExampleSize& size) {
  const int64_t dim = whole_blocks(size.dim), out = size.out > 0 ? size.out : dim;
  const auto stock = [](const Tensor& x, const Tensor& blocks, const std::optional<Tensor>& bias) {
    return stock::packed_linear(x, weight_of(blocks, x.size(-1)), bias);
  };
  Example example =
      make_example<LinearForward>(stock, {random({size.rows, dim}), random_q4_1(out, dim).data, random({out})});
  example.bound = [stock](const LayerOps& layer) -> ExampleForward {
    const auto module = std::make_shared<BoundLayer<PackedLinearForward>>(layer, stock::packed_linear);
    return [module](const Values& v) {
      const Tensor x = v[0].toTensor();
      return Tensors{module->slot(x, weight_of(v[1].toTensor(), x.size(-1)), v[2].toOptional<Tensor>())};
    };
  };
  return packed_shape(std::move(example), size, dim, out);
}

void bind_linear(SlotBase& slot, const LayerOps& layer) {
  bind_regular<LinearForward>(slot, layer);
  if (layer.claims("torch_products")) slot.set_claims({"torch_products"});
  if (const auto op =
          typed_op<void(const Tensor&, const Tensor&, const OptTensor&, const OptTensor&)>(layer, "argmax")) {
    slot.bind_op<Argmax>([op = *op](const Tensor& out, const Tensor& x, const Tensor& history, const Tensor& row) {
      below_autograd(op, out, x, given(history), given(row));
    });
  }
  if (const auto op = typed_op<Tensor(const Tensor&, const Tensor&)>(layer, "sample")) {
    slot.bind_op<Sample>(
        [op = *op](const Tensor& x, const Tensor& settings) { return below_autograd(op, x, settings); });
  }
}

// packed_linear/1 takes ggml's blocks as a bare tensor.
void bind_blocks(SlotBase& slot, const LayerOps& layer) {
  const auto forward = forward_of(regular_ops(layer, Gradients::kContiguous), static_cast<LinearForward*>(nullptr));
  bind_slot<PackedLinearForward>(slot, [forward](const Tensor& x, const Weight& weight, const OptTensor& bias) {
    return forward(x, weight.data, bias);
  });
}

}  // namespace

std::vector<Contract> linear_contracts() {
  return {{"linear/1",
           {{"forward", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"},
            {"forward_train", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"},
            {"backward",
             "(Tensor dy, Tensor x, Tensor weight, bool with_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)"},
            {"argmax", optional_role("(Tensor(a!) place, Tensor x, Tensor(b!)? said=None, Tensor? at=None) -> ()")},
            {"sample", optional_role("(Tensor x, Tensor settings) -> Tensor ids")}},
           bind_linear,
           linear_example,
           {.rows = 1, .dim = 576},
           {.rows = 1, .dim = 8192},
           {"torch_products"}},
          {.name = "packed_linear/2",
           .roles = {{"forward", "(Tensor x, " + schema_of(weight_fields()) +
                                     ", str format, int columns, Tensor? bias) -> Tensor y"}},
           .bind = bind_regular<PackedLinearForward>,
           .example = packed_example,
           .small = {.rows = 1, .dim = 576},
           .large = {.rows = 1, .dim = 8192},
           .weights = {}},
          {.name = "packed_linear/1",
           .roles = {{"forward", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"}},
           .bind = bind_blocks,
           .example = blocks_example,
           .small = {.rows = 1, .dim = 576},
           .large = {.rows = 1, .dim = 8192},
           .weights = kPackedFormats,
           .serves_slots_of = "packed_linear/2"}};
}

}  // namespace binding
}  // namespace hotswap
