// Examples of the contracts of recurrences and of their steps of one token.
#include "hotswap/layers/mamba.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>

#include <limits>

#include "hotswap/kernelize/contract/arguments.h"
#include "hotswap/kernelize/example/example.h"

namespace hotswap::binding {
namespace {

constexpr int64_t kWidth = 4, kState = 16, kHeadDim = 32;  // of examples; a head is no wider

// Decays as trained models have them.
Tensor decays(at::IntArrayRef shape) { return -(at::rand(shape, at::kFloat) * 4 + 0.1); }

Result<LayerExample> conv_example(const std::string&, const ExampleSize& size) {
  return make_example<CausalConv1dForward>(
      stock::causal_conv1d, {random({1, size.dim, size.rows}), random({size.dim, kWidth}) / 2, random({size.dim}),
                             c10::IValue(), c10::IValue(), "silu"});
}

Result<LayerExample> conv_update_example(const std::string&, const ExampleSize& size) {
  LayerExample example;
  example.shape = cat(size.rows, "x", size.dim);
  example.arguments = {random({size.rows, size.dim, 1}),
                       random({size.rows, size.dim, kWidth}),
                       random({size.dim, kWidth}) / 2,
                       random({size.dim}),
                       c10::IValue(),
                       c10::IValue(),
                       "silu"};
  const auto run = [](const auto& forward) -> ExampleForward {
    return [forward](const Values& a) {
      size_t next = 0;
      Tensor x, state, weight;
      OptionalTensor bias, cache_seqlens, state_indices;
      std::string activation;
      for (Tensor* each : {&x, &state, &weight}) take(a, next, *each);
      for (OptionalTensor* each : {&bias, &cache_seqlens, &state_indices}) take(a, next, *each);
      take(a, next, activation);
      return Tensors{forward(x, state.clone(), weight, bias, activation)};
    };
  };
  example.stock = example.exact = run(stock::causal_conv1d_update);
  example.bound = [run](const LayerOps& layer) {
    const auto module = std::make_shared<BoundLayer<CausalConv1dUpdateForward>>(layer, stock::causal_conv1d_update);
    return run([module](const auto&... each) { return module->slot(each...); });
  };
  return example;
}

Result<LayerExample> scan_example(const std::string&, const ExampleSize& size) {
  Values arguments;
  push(arguments, SelectiveScanInputs{.u = random({1, size.dim, size.rows}),
                                      .delta = random({1, size.dim, size.rows}) - 2,
                                      .A = decays({size.dim, kState}),
                                      .B = random({1, kState, size.rows}),
                                      .C = random({1, kState, size.rows}),
                                      .D = random({size.dim}),
                                      .z = random({1, size.dim, size.rows}),
                                      .delta_bias = random({size.dim})});
  return make_example<SelectiveScanForward>(stock::selective_scan, std::move(arguments));
}

Result<LayerExample> state_update_example(const std::string&, const ExampleSize& size) {
  Values arguments;
  push(arguments, StateUpdateInputs{.state = random({size.rows, size.dim, kState}),
                                    .x = random({size.rows, size.dim}),
                                    .dt = random({size.rows, size.dim}) - 2,
                                    .A = decays({size.dim, kState}),
                                    .B = random({size.rows, kState}),
                                    .C = random({size.rows, kState}),
                                    .D = random({size.dim}),
                                    .z = random({size.rows, size.dim}),
                                    .dt_bias = random({size.dim})});
  const auto run = [](const auto& forward) -> ExampleForward {
    return [forward](const Values& a) {
      size_t next = 0;
      StateUpdateInputs in;
      take(a, next, in);
      in.state = in.state.clone();  // an example may run again
      return Tensors{forward(in)};
    };
  };
  LayerExample example = make_example<StateUpdateForward>(stock::selective_state_update, std::move(arguments));
  example.stock = example.exact = run(stock::selective_state_update);
  example.bound = [run](const LayerOps& layer) {
    const auto module = std::make_shared<BoundLayer<StateUpdateForward>>(layer, stock::selective_state_update);
    return run([module](const StateUpdateInputs& in) { return module->slot(in); });
  };
  return example;
}

Result<LayerExample> ssd_example(const std::string&, const ExampleSize& size) {
  const int64_t head_dim = size.dim % kHeadDim == 0 ? kHeadDim : size.dim, heads = size.dim / head_dim;
  Values arguments;
  push(arguments, SsdInputs{.x = random({1, size.rows, heads, head_dim}),
                            .dt = random({1, size.rows, heads}) - 2,
                            .A = decays({heads}),
                            .B = random({1, size.rows, 1, 4 * kState}),
                            .C = random({1, size.rows, 1, 4 * kState}),
                            .D = random({heads}),
                            .dt_bias = random({heads}),
                            .chunk_size = 64,
                            .dt_max = std::numeric_limits<double>::infinity()});
  return make_example<SsdForward>(stock::ssd, std::move(arguments));
}

Result<LayerExample> gated_norm_example(const std::string&, const ExampleSize& size) {
  return make_example<GatedRmsNormForward>(
      stock::gated_rms_norm,
      {random({size.rows, size.dim}), random({size.rows, size.dim}), random({size.dim}), 1e-5, size.dim, false});
}

}  // namespace

std::vector<ContractExample> mamba_examples() {
  const ExampleSize sequence = {.rows = 128, .dim = 256}, long_sequence = {.rows = 1024, .dim = 1536};
  const ExampleSize step = {.rows = 1, .dim = 1536}, steps = {.rows = 64, .dim = 4096};
  return {{"causal_conv1d/1", conv_example, sequence, long_sequence},
          {"causal_conv1d_update/1", conv_update_example, step, steps},
          {"selective_scan/1", scan_example, sequence, long_sequence},
          {"selective_state_update/1", state_update_example, step, steps},
          {"ssd/1", ssd_example, sequence, long_sequence},
          {"gated_rms_norm/1", gated_norm_example}};
}

}  // namespace hotswap::binding
