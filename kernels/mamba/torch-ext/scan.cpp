// Checks and calls of the selective scan's ops. The formulas are in kernels/mamba/scan.h.
#include "kernels/mamba/torch-ext/scan.h"

#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/scan.h"

namespace mamba {
namespace {

const scan::Table& table() {
  static const scan::Table& chosen = HOTSWAP_CHOOSE_TABLE(mamba::scan);
  return chosen;
}

// As the ops have them.
struct Given {
  const Tensor &u, &delta, &A, &B, &C;
  const MaybeTensor &D, &z, &delta_bias, &initial_state, &seq_idx;
  bool delta_softplus;
};

// B or C, or their gradients, in shapes that coefficients_of took.
scan::Coefficients coefficients(const Call& call, const Tensor& t) {
  if (t.dim() == 2) return {call.view(t, -1, 0, 1), 0, true};
  if (t.dim() == 3) return {call.view(t, 0, 1, 2), 0, false};
  return {call.view(t, 0, 2, 3), t.stride(1), false};
}

scan::Coefficients coefficients_of(const Call& call, const scan::Problem& p, const Tensor& t) {
  if (t.dim() == 2) {
    call.shape(t, {p.channels, p.states}, "[channels, states]");
  } else if (t.dim() == 3) {
    call.shape(t, {p.batch, p.states, p.length}, "[batch, states, length]");
  } else {
    call.dims(t, 4, "[batch, groups, states, length], [batch, states, length] or [channels, states]");
    call.shape(t, {p.batch, t.size(1), p.states, p.length}, "[batch, groups, states, length]");
  }
  return coefficients(call, t);
}
int64_t groups_of(const Tensor& t) { return t.dim() == 4 ? t.size(1) : 1; }

scan::Problem problem_of(const Call& call, const Given& in) {
  call.dims(in.u, 3, "[batch, channels, length]");
  call.dims(in.A, 2, "[channels, states]");
  const int64_t batch = in.u.size(0), channels = in.u.size(1), length = in.u.size(2), states = in.A.size(1);
  scan::Problem p{.batch = batch,
                  .channels = channels,
                  .length = length,
                  .groups = 1,
                  .states = int(states),
                  .softplus = in.delta_softplus,
                  .u = call.view(in.u, 0, 1, 2),
                  .delta = call.view(in.delta, 0, 1, 2),
                  .z = {},
                  .a = call.view(in.A, -1, 0, 1),
                  .b = {},
                  .c = {},
                  .d = {},
                  .delta_bias = {},
                  .initial = {},
                  .sequence = {}};
  call.shape(in.delta, {batch, channels, length}, "[batch, channels, length]");
  call.shape(in.A, {channels, states}, "[channels, states]");
  check(states >= 1 && states <= scan::kMaxStates, call.op, ": expected A of 1 to ", scan::kMaxStates,
        " states a channel; got ", states, "; sum the results of several calls");
  p.b = coefficients_of(call, p, in.B);
  p.c = coefficients_of(call, p, in.C);
  p.groups = p.b.constant ? groups_of(in.C) : groups_of(in.B);
  check(p.b.constant || p.c.constant || groups_of(in.C) == p.groups, call.op,
        ": expected B and C of as many groups; got ", groups_of(in.B), " and ", groups_of(in.C),
        "; expand one of them");
  check(p.groups >= 1 && channels % p.groups == 0, call.op, ": expected channels that ", p.groups,
        " groups of B and C share evenly; got ", channels, "; check the layer's sizes");
  if (in.z) {
    call.shape(*in.z, {batch, channels, length}, "[batch, channels, length]");
    p.z = call.view(*in.z, 0, 1, 2);
  }
  if (in.D) {
    call.shape(*in.D, {channels}, "[channels]");
    p.d = call.view(*in.D, -1, 0, -1);
  }
  if (in.delta_bias) {
    call.shape(*in.delta_bias, {channels}, "[channels]");
    p.delta_bias = call.view(*in.delta_bias, -1, 0, -1);
  }
  if (in.initial_state) {
    call.shape(*in.initial_state, {batch, channels, states}, "[batch, channels, states]");
    p.initial = call.view(*in.initial_state, 0, 1, 2);
  }
  p.sequence = call.sequences(in.seq_idx, batch, length);
  return p;
}

// How many states forward saves: on a GPU a block has room for shorter chunks.
int64_t saved_of(const Call& call, const scan::Problem& p) {
  int64_t chunk = scan::kChunk;
  kernels::run_on(
      call.device, [&](auto) { chunk = scan::kGpuChunk; }, [] {});
  return scan::chunks_of(p, chunk);
}

// [batch, chunks, states, channels]
View checkpoints_of(const Tensor& t) {
  return {t.data_ptr(), DType::kFloat32, t.size(1) * t.size(2) * t.size(3), 1, t.size(3)};
}

// fn(scratch, begin, end): items of work, each of `cost` numbers, with a thread's own scratch of so many floats.
template <class Fn>
void with_scratch(int64_t items, int64_t cost, int64_t floats, const Fn& fn) {
  kernels::parallel_rows(items, cost, [&](int64_t begin, int64_t end) {
    const Tensor scratch = kernels::empty({floats + 16}, DType::kFloat32);
    const auto start = (reinterpret_cast<uintptr_t>(scratch.data_ptr()) + 63) & ~uintptr_t{63};
    fn(reinterpret_cast<float*>(start), begin, end);
  });
}

struct Results {
  Tensor y, last;
};
Results run(const Call& call, const scan::Problem& p, const Given& in, const MaybeTensor& checkpoints) {
  Results r{new_in_layout(in.u, p.u.type),
            kernels::empty({p.batch, p.channels, p.states}, DType::kFloat32, call.device)};
  const scan::Forward args{.of = p,
                           .y = call.view(r.y, 0, 1, 2),
                           .last = call.view(r.last, 0, 1, 2),
                           .checkpoints = checkpoints ? checkpoints_of(*checkpoints) : View{}};
  kernels::run_on(
      call.device,
      [&](auto stream) {
        const Tensor memory = kernels::empty({cuda::scan_memory(p)}, DType::kFloat32, call.device);
        cuda::scan_forward(args, static_cast<float*>(memory.data_ptr()), stream);
      },
      [&] {
        with_scratch(p.batch * p.groups * scan::group_blocks_of(p), kBlock * p.length * p.states,
                     scan::forward_scratch(p),
                     [&](float* scratch, int64_t begin, int64_t end) { table().forward(args, scratch, begin, end); });
      });
  return r;
}

}  // namespace

ScanResult selective_scan(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                          const MaybeTensor& D, const MaybeTensor& z, const MaybeTensor& delta_bias,
                          const MaybeTensor& initial_state, const MaybeTensor& seq_idx, bool delta_softplus) {
  const Call call{"selective_scan", device_of(u)};
  const Given in{u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, delta_softplus};
  Results r = run(call, problem_of(call, in), in, std::nullopt);
  return {std::move(r.y), std::move(r.last)};
}

ScanForTraining selective_scan_fwd(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                                   const Tensor& C, const MaybeTensor& D, const MaybeTensor& z,
                                   const MaybeTensor& delta_bias, const MaybeTensor& initial_state,
                                   const MaybeTensor& seq_idx, bool delta_softplus) {
  const Call call{"selective_scan_fwd", device_of(u)};
  const Given in{u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, delta_softplus};
  const scan::Problem p = problem_of(call, in);
  Tensor checkpoints = kernels::empty({p.batch, saved_of(call, p), p.states, p.channels}, DType::kFloat32, call.device);
  Results r = run(call, p, in, checkpoints);
  return {std::move(r.y), std::move(r.last), std::move(checkpoints)};
}

ScanGradients selective_scan_bwd(const Tensor& dy, const MaybeTensor& dlast_state, const Tensor& u, const Tensor& delta,
                                 const Tensor& A, const Tensor& B, const Tensor& C, const MaybeTensor& D,
                                 const MaybeTensor& z, const MaybeTensor& delta_bias, const MaybeTensor& initial_state,
                                 const MaybeTensor& seq_idx, const Tensor& checkpoints, bool delta_softplus) {
  const Call call{"selective_scan_bwd", device_of(u)};
  const Given in{u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, delta_softplus};
  const scan::Problem p = problem_of(call, in);
  const int64_t chunks = scan::chunks_of(p);
  call.shape(dy, {p.batch, p.channels, p.length}, "[batch, channels, length]");
  call.shape(checkpoints, {p.batch, saved_of(call, p), p.states, p.channels},
             "[batch, chunks, states, channels], as selective_scan_fwd returned them");
  check_tensor(checkpoints.scalar_type() == kernels::ScalarType::Float && checkpoints.is_contiguous(), checkpoints,
               "as selective_scan_fwd returned them, contiguous float32; got ", kernels::dtype_name(checkpoints),
               checkpoints.is_contiguous() ? "" : " with gaps", "; pass those");
  if (dlast_state) call.shape(*dlast_state, {p.batch, p.channels, p.states}, "[batch, channels, states]");

  const auto like = [&](const Tensor& t) { return kernels::empty_like(t, call.type(t)); };
  const auto maybe_like = [&](const MaybeTensor& t) { return t ? like(*t) : none(call.device); };
  Tensor du = new_in_layout(u, p.u.type), ddelta = new_in_layout(delta, p.delta.type), dA = like(A);
  Tensor dB = like(B), dC = like(C), dD = maybe_like(D);
  Tensor dz = z ? new_in_layout(*z, p.z.type) : none(call.device);
  Tensor dbias = maybe_like(delta_bias), dinitial = maybe_like(initial_state);

  int64_t slots = scan::slots_of(p), entries = p.batch, floats = 0;
  kernels::run_on(
      call.device,
      [&](auto) {
        slots = cuda::scan_slots(p), entries = cuda::scan_entries(p), floats = cuda::scan_backward_memory(p);
      },
      [] {});
  const int64_t rows = scan::sum_rows_of(p);
  const bool tokens = !p.b.constant || !p.c.constant;
  const Tensor token_sums = kernels::empty(
      {tokens ? p.batch * p.groups * slots * chunks : 0, 2, p.states, scan::kChunk}, DType::kFloat32, call.device);
  const Tensor channel_sums = kernels::empty({entries, rows, p.channels}, DType::kFloat32, call.device);
  const Tensor memory = kernels::empty({floats}, DType::kFloat32, call.device);
  const scan::Backward args{.of = p,
                            .dy = call.view(dy, 0, 1, 2),
                            .dlast = dlast_state ? call.view(*dlast_state, 0, 1, 2) : View{},
                            .checkpoints = checkpoints_of(checkpoints),
                            .du = call.view(du, 0, 1, 2),
                            .ddelta = call.view(ddelta, 0, 1, 2),
                            .dz = z ? call.view(dz, 0, 1, 2) : View{},
                            .dinitial = initial_state ? call.view(dinitial, 0, 1, 2) : View{},
                            .db = coefficients(call, dB),
                            .dc = coefficients(call, dC),
                            .da = call.view(dA, -1, 0, 1),
                            .dd = D ? call.view(dD, -1, 0, -1) : View{},
                            .dbias = delta_bias ? call.view(dbias, -1, 0, -1) : View{},
                            .token_sums = static_cast<float*>(token_sums.data_ptr()),
                            .channel_sums = static_cast<float*>(channel_sums.data_ptr())};
  kernels::run_on(
      call.device, [&](auto stream) { cuda::scan_backward(args, static_cast<float*>(memory.data_ptr()), stream); },
      [&] {
        const int64_t blocks = (scan::group_blocks_of(p) + slots - 1) / (slots > 0 ? slots : 1);
        with_scratch(p.batch * p.groups * slots, blocks * kBlock * p.length * p.states, scan::backward_scratch(p),
                     [&](float* scratch, int64_t begin, int64_t end) { table().backward(args, scratch, begin, end); });
        if (tokens)
          kernels::parallel_rows(p.batch * p.groups * chunks, 2 * slots * p.states * scan::kChunk,
                                 [&](int64_t begin, int64_t end) { table().sum_tokens(args, begin, end); });
        kernels::parallel_rows(p.channels, p.batch * rows,
                               [&](int64_t begin, int64_t end) { table().sum_channels(args, begin, end); });
      });
  return {std::move(du), std::move(ddelta), std::move(dA),    std::move(dB),      std::move(dC),
          std::move(dD), std::move(dz),     std::move(dbias), std::move(dinitial)};
}

}  // namespace mamba
