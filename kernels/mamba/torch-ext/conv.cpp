// Checks and calls of the convolution's ops. The formulas are in kernels/mamba/conv.h.
#include "kernels/mamba/torch-ext/conv.h"

#include "kernels/mamba/conv.h"
#include "kernels/mamba/cuda/mamba.h"

namespace mamba {
namespace {

const conv::Table& table() {
  static const conv::Table& chosen = HOTSWAP_CHOOSE_TABLE(mamba::conv);
  return chosen;
}

// Without initial state and seq_idx: what all three ops have.
conv::Problem problem_of(const Call& call, const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                         const std::string& activation) {
  call.dims(x, 3, "[batch, channels, length]");
  call.dims(weight, 2, "[channels, width]");
  const int64_t channels = x.size(1), width = weight.size(1);
  call.shape(weight, {channels, width}, "[channels, width]");
  check(width >= 1 && width <= conv::kMaxTaps, call.op, ": expected a weight of 1 to ", conv::kMaxTaps,
        " taps a channel; got ", width, "; longer filters are torch's conv1d's");
  check(activation == "none" || activation == "silu" || activation == "swish", call.op,
        ": expected activation none, silu or swish; got \"", activation, "\"; apply others to the result");
  conv::Problem p{.batch = x.size(0),
                  .channels = channels,
                  .length = x.size(2),
                  .width = int(width),
                  .silu = activation != "none",
                  .x = call.view(x, 0, 1, 2),
                  .weight = call.view(weight, -1, 0, 1),
                  .bias = {},
                  .initial = {},
                  .sequence = {}};
  if (bias) {
    call.shape(*bias, {channels}, "[channels]");
    p.bias = call.view(*bias, -1, 0, -1);
  }
  return p;
}

// The last width - 1 columns of a state [batch, channels, columns].
View last_columns(const Call& call, const conv::Problem& p, const Tensor& state) {
  call.dims(state, 3, "[batch, channels, columns]");
  const int64_t columns = state.size(2), halo = p.width - 1;
  call.shape(state, {p.batch, p.channels, columns}, "[batch, channels, columns]");
  check_tensor(columns >= halo, state, "of at least ", halo, " columns, the weight's width less one; got ", columns,
               "; put zeros in front");
  View view = call.view(state, 0, 1, 2);
  if (state.numel() == 0) return {};
  view.data = static_cast<char*>(view.data) + (columns - halo) * view.step * kernels::size_of(view.type);
  return view;
}

conv::Problem whole_problem(const Call& call, const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                            const MaybeTensor& initial_state, const MaybeTensor& seq_idx,
                            const std::string& activation) {
  conv::Problem p = problem_of(call, x, weight, bias, activation);
  if (initial_state) p.initial = last_columns(call, p, *initial_state);
  p.sequence = call.sequences(seq_idx, p.batch, p.length);
  return p;
}

}  // namespace

Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const MaybeTensor& initial_state,
                     const MaybeTensor& seq_idx, std::string activation) {
  const Call call{"causal_conv1d", device_of(x)};
  const conv::Problem p = whole_problem(call, x, weight, bias, initial_state, seq_idx, activation);
  Tensor y = new_in_layout(x, p.x.type);
  const conv::Forward args{.of = p, .y = call.view(y, 0, 1, 2)};
  kernels::run_on(
      call.device, [&](auto stream) { cuda::conv_forward(args, stream); },
      [&] {
        kernels::parallel_rows(conv::items_of(p), kBlock * (p.length < conv::kPart ? p.length : conv::kPart),
                               [&](int64_t begin, int64_t end) { table().forward(args, begin, end); });
      });
  return y;
}

ConvGradients causal_conv1d_bwd(const Tensor& dy, const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                                const MaybeTensor& initial_state, const MaybeTensor& seq_idx, std::string activation) {
  const Call call{"causal_conv1d_bwd", device_of(x)};
  const conv::Problem p = whole_problem(call, x, weight, bias, initial_state, seq_idx, activation);
  call.shape(dy, {p.batch, p.channels, p.length}, "[batch, channels, length]");
  Tensor dx = new_in_layout(x, p.x.type), dweight = kernels::empty_like(weight, p.weight.type);
  Tensor dbias = bias ? kernels::empty_like(*bias, p.bias.type) : none(call.device);
  Tensor dinitial = initial_state ? kernels::empty_like(*initial_state, call.type(*initial_state)) : none(call.device);
  int64_t parts = p.batch * conv::parts_of(p);
  kernels::run_on(
      call.device, [&](auto) { parts = cuda::conv_partials(p); }, [] {});
  const Tensor partials = kernels::empty({parts, p.width + 1, p.channels}, DType::kFloat32, call.device);
  conv::Backward args{.of = p,
                      .dy = call.view(dy, 0, 1, 2),
                      .dx = call.view(dx, 0, 1, 2),
                      .dinitial = {},
                      .partials = static_cast<float*>(partials.data_ptr()),
                      .dweight = call.view(dweight, -1, 0, 1),
                      .dbias = bias ? call.view(dbias, -1, 0, -1) : View{}};
  if (initial_state) {
    torch::stable::zero_(dinitial);  // the columns that no tap reaches, and all where there are no outputs
    args.dinitial = last_columns(call, p, dinitial);
  }
  kernels::run_on(
      call.device, [&](auto stream) { cuda::conv_backward(args, stream); },
      [&] {
        kernels::parallel_rows(conv::items_of(p), 2 * kBlock * (p.length < conv::kPart ? p.length : conv::kPart),
                               [&](int64_t begin, int64_t end) { table().backward(args, begin, end); });
        kernels::parallel_rows(p.channels, parts * (p.width + 1),
                               [&](int64_t begin, int64_t end) { table().sum_partials(args, begin, end); });
      });
  return {std::move(dx), std::move(dweight), std::move(dbias), std::move(dinitial)};
}

Tensor causal_conv1d_update(const Tensor& given, const Tensor& state, const Tensor& weight, const MaybeTensor& bias,
                            const MaybeTensor& cache_seqlens, const MaybeTensor& state_indices,
                            std::string activation) {
  const Call call{"causal_conv1d_update", device_of(given)};
  call.type(given);                   // here: what follows is another tensor, without the argument's name
  const bool one = given.dim() == 2;  // [batch, channels]: one new token
  const Tensor x = one ? torch::stable::unsqueeze(given, 2) : given;
  const conv::Problem p = problem_of(call, x, weight, bias, activation);
  call.dims(state, 3, "[rows, channels, columns]");
  const int64_t columns = state.size(2), rows = state_indices ? state.size(0) : p.batch;
  call.shape(state, {rows, p.channels, columns}, "[rows, channels, columns]");
  check(columns >= p.width - 1 && (columns > 0 || !cache_seqlens), call.op, ": expected a state of at least ",
        p.width - 1, " columns, the weight's width less one; got ", columns, "; make a longer state");
  Tensor kept_lengths, kept_indices;
  Tensor y = kernels::empty_like(x, p.x.type);
  const conv::Update args{.of = p,
                          .state = call.view(state, 0, 1, 2),
                          .columns = columns,
                          .lengths = call.indices(cache_seqlens, p.batch, kept_lengths),
                          .indices = call.rows(state_indices, p.batch, rows, kept_indices),
                          .y = call.view(y, 0, 1, 2)};
  kernels::run_on(
      call.device, [&](auto stream) { cuda::conv_update(args, stream); },
      [&] {
        kernels::parallel_rows(p.batch * blocks_of(p.channels), kBlock * (p.length + columns),
                               [&](int64_t begin, int64_t end) { table().update(args, begin, end); });
      });
  return one ? torch::stable::squeeze(y, 2) : y;
}

}  // namespace mamba
