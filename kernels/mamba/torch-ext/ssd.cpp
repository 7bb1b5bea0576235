// Checks and calls of the ops of state space duality. The formulas are in kernels/mamba/ssd.h.
#include "kernels/mamba/torch-ext/ssd.h"

#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/ssd.h"

namespace mamba {
namespace {

const ssd::Table& table() {
  static const ssd::Table& chosen = HOTSWAP_CHOOSE_TABLE(mamba::ssd);
  return chosen;
}

// ---- what comes in

Tensor dense(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }
Tensor wide(const Call& call, const Tensor& t) {
  return dense(call.type(t) == DType::kFloat32 ? t : torch::stable::to(t, kernels::ScalarType::Float));
}
float* floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

// Where the tokens [batch, length, heads(, numbers)] of t lie.
ssd::Tokens tokens(const Tensor& t) { return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)}; }

// The tensors of a call, kept while its kernels read them.
struct Inputs {
  Call call;
  Tensor x, dt, A, B, C;
  MaybeTensor D, z, dt_bias, initial;
  ssd::Problem problem;

  // Rows are read where they lie; numbers that do not lie beside each other are copied.
  Tensor rows(const Tensor& t) const {
    call.type(t);
    kernels::check_same_dtype(t, problem.type, "x");
    return t.stride(3) == 1 || t.size(3) <= 1 ? t : torch::stable::contiguous(t);
  }
};

// D [heads] or [heads, dim]; on the CPU for each number of a head.
Tensor skips(const Call& call, const Tensor& D, const ssd::Problem& p) {
  if (D.dim() == 2) {
    call.shape(D, {p.heads, p.dim}, "[heads, dim]");
    return wide(call, D);
  }
  call.shape(D, {p.heads}, "[heads] or [heads, dim]");
  const Tensor one = wide(call, D);
  if (!call.device.is_cpu()) return one;
  Tensor all = kernels::empty({p.heads, p.dim}, DType::kFloat32, call.device);
  for (int64_t h = 0; h < p.heads; ++h) std::fill_n(floats(all) + h * p.dim, p.dim, floats(one)[h]);
  return all;
}

Inputs inputs_of(const char* op, const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                 const MaybeTensor& D, const MaybeTensor& z, const MaybeTensor& dt_bias,
                 const MaybeTensor& initial_state, const MaybeTensor& seq_idx, int64_t chunk_size, bool dt_softplus,
                 double dt_min, double dt_max) {
  const Call call{op, device_of(x)};
  call.dims(x, 4, "[batch, length, heads, dim]");
  call.dims(B, 4, "[batch, length, groups, state]");
  const int64_t batch = x.size(0), length = x.size(1), heads = x.size(2), dim = x.size(3);
  const int64_t groups = B.size(2), state = B.size(3);
  call.shape(dt, {batch, length, heads}, "[batch, length, heads]");
  call.shape(A, {heads}, "[heads]");
  call.shape(B, {batch, length, groups, state}, "[batch, length, groups, state]");
  call.shape(C, {batch, length, groups, state}, "[batch, length, groups, state]");
  check(groups >= 1 && heads % groups == 0, op, ": expected heads, ", heads, ", as a multiple of groups; got ", groups,
        " groups of B and C; repeat or split them");
  check(call.device.is_cpu() || state <= ssd::kMaxGpuState, op, ": expected a state of at most ", ssd::kMaxGpuState,
        " numbers on a GPU; got ", state, "; run it on the CPU");
  check(chunk_size >= 1, op, ": expected a chunk_size from 1 on; got ", chunk_size, "; it changes rounding only");
  check(dt_min <= dt_max, op, ": expected dt_min <= dt_max; got ", dt_min, " and ", dt_max,
        "; 0 and infinity leave dt as it is");

  Inputs in{.call = call,
            .x = x,
            .dt = dt,
            .A = wide(call, A),
            .B = B,
            .C = C,
            .D = {},
            .z = {},
            .dt_bias = {},
            .initial = {},
            .problem = {}};
  ssd::Problem& p = in.problem;
  p = {.batch = batch,
       .length = length,
       .heads = heads,
       .groups = groups,
       .dim = dim,
       .state = state,
       .type = call.type(x),
       .dt_type = call.type(dt),
       .x = {},
       .z = {},
       .B = {},
       .C = {},
       .dt = tokens(dt),
       .A = floats(in.A),
       .D = nullptr,
       .each_D = false,
       .dt_bias = nullptr,
       .initial = nullptr,
       .sequence = call.sequences(seq_idx, batch, length),
       .softplus = dt_softplus,
       .dt_min = float(dt_min),
       .dt_max = float(dt_max)};
  in.x = in.rows(x), in.B = in.rows(B), in.C = in.rows(C);
  p.x = tokens(in.x), p.B = tokens(in.B), p.C = tokens(in.C);
  if (z) {
    kernels::check_same_shape(x, *z, "x");
    kernels::check_device(*z, call.device);
    in.z = in.rows(*z);
    p.z = tokens(*in.z);
  }
  if (D) {
    in.D = skips(call, *D, p);
    p.D = floats(*in.D), p.each_D = in.D->dim() == 2;
  }
  if (dt_bias) {
    call.shape(*dt_bias, {heads}, "[heads]");
    in.dt_bias = wide(call, *dt_bias);
    p.dt_bias = floats(*in.dt_bias);
  }
  if (initial_state) {
    call.shape(*initial_state, {batch, heads, dim, state}, "[batch, heads, dim, state]");
    in.initial = wide(call, *initial_state);
    p.initial = floats(*in.initial);
  }
  return in;
}

// fn(scratch, begin, end) for the problem's items, a range for each thread.
template <class Fn>
void on_items(const ssd::Problem& p, int64_t scratch, const Fn& fn) {
  const int64_t work = p.length * ssd::kHeads * p.dim * p.state;
  kernels::parallel_rows(p.items(), work, [&](int64_t begin, int64_t end) {
    const Tensor memory = kernels::empty({scratch}, DType::kFloat32);
    fn(floats(memory), begin, end);
  });
}

// ---- forward

struct Outputs {
  Tensor y, final_state;
};

Outputs run_forward(const Inputs& in, const Tensor* states) {
  const ssd::Problem& p = in.problem;
  Outputs out{.y = kernels::empty_like(in.x, p.type),
              .final_state = kernels::empty({p.batch, p.heads, p.dim, p.state}, DType::kFloat32, in.call.device)};
  const ssd::Forward args{.of = p,
                          .y = tokens(out.y),
                          .final = floats(out.final_state),
                          .states = states == nullptr ? nullptr : floats(*states)};
  kernels::run_on(
      in.call.device,
      [&](auto stream) {
        const Tensor memory = kernels::empty({cuda::ssd_memory(args)}, DType::kFloat32, in.call.device);
        cuda::ssd_forward(args, floats(memory), stream);
      },
      [&] {
        on_items(p, ssd::forward_scratch(p),
                 [&](float* scratch, int64_t begin, int64_t end) { table().forward(args, scratch, begin, end); });
      });
  return out;
}

// What ssd_fwd keeps for ssd_bwd: states on the CPU; a GPU makes them again, which takes less time than a copy.
Tensor saved_states(const Inputs& in) {
  const ssd::Problem& p = in.problem;
  if (!in.call.device.is_cpu()) return none(in.call.device);
  return kernels::empty({p.batch, p.chunks(), p.heads, p.state, p.dim}, DType::kFloat32);
}

// ---- backward

// Sums over batch entries and `inner` numbers of parts [batch, heads, inner], in order.
Tensor sum_heads(const Tensor& parts, int64_t batch, int64_t heads, int64_t inner) {
  Tensor sums = kernels::empty({heads}, DType::kFloat32);
  for (int64_t h = 0; h < heads; ++h) {
    double sum = 0;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t n = 0; n < inner; ++n) sum += double(floats(parts)[(b * heads + h) * inner + n]);
    }
    floats(sums)[h] = float(sum);
  }
  return sums;
}

Tensor gradient_of_D(const Tensor& parts, const MaybeTensor& D, const ssd::Problem& p) {
  if (!D) return none(kernels::cpu());
  if (D->dim() == 1) return sum_heads(parts, p.batch, p.heads, p.dim);
  Tensor sums = sum_heads(parts, p.batch, p.heads * p.dim, 1);
  return torch::stable::reshape(sums, {p.heads, p.dim});
}

// Gradients of what all tokens share: A [heads], D as it was given, dt_bias [heads].
struct HeadGradients {
  Tensor A, D, dt_bias;
};

HeadGradients run_backward(ssd::Backward args, const MaybeTensor& D, bool with_bias) {
  const ssd::Problem& p = args.of;
  const auto make = [](std::initializer_list<int64_t> sizes) { return kernels::empty(sizes, DType::kFloat32); };
  const Tensor dB = make({p.batch, p.length, p.groups, p.blocks(), p.state});
  const Tensor dC = make({p.batch, p.length, p.groups, p.blocks(), p.state});
  const Tensor dA = make({p.batch, p.heads}), dbias = make({p.batch, p.heads}), dD = make({p.batch, p.heads, p.dim});
  args.dB_parts = floats(dB), args.dC_parts = floats(dC);
  args.dA = floats(dA), args.ddt_bias = floats(dbias), args.dD = floats(dD);
  on_items(p, ssd::backward_scratch(p),
           [&](float* scratch, int64_t begin, int64_t end) { table().backward(args, scratch, begin, end); });
  kernels::parallel_rows(p.batch * p.length, 2 * p.groups * p.blocks() * p.state,
                         [&](int64_t begin, int64_t end) { table().sum_parts(args, begin, end); });
  return {sum_heads(dA, p.batch, p.heads, 1), gradient_of_D(dD, D, p),
          with_bias ? sum_heads(dbias, p.batch, p.heads, 1) : none(kernels::cpu())};
}

}  // namespace

std::tuple<Tensor, Tensor> ssd_op(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                                  const MaybeTensor& D, const MaybeTensor& z, const MaybeTensor& dt_bias,
                                  const MaybeTensor& initial_state, const MaybeTensor& seq_idx, int64_t chunk_size,
                                  bool dt_softplus, double dt_min, double dt_max) {
  Outputs out = run_forward(
      inputs_of("ssd", x, dt, A, B, C, D, z, dt_bias, initial_state, seq_idx, chunk_size, dt_softplus, dt_min, dt_max),
      nullptr);
  return {std::move(out.y), std::move(out.final_state)};
}

std::tuple<Tensor, Tensor, Tensor> ssd_fwd(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B,
                                           const Tensor& C, const MaybeTensor& D, const MaybeTensor& z,
                                           const MaybeTensor& dt_bias, const MaybeTensor& initial_state,
                                           const MaybeTensor& seq_idx, int64_t chunk_size, bool dt_softplus,
                                           double dt_min, double dt_max) {
  const Inputs in = inputs_of("ssd_fwd", x, dt, A, B, C, D, z, dt_bias, initial_state, seq_idx, chunk_size, dt_softplus,
                              dt_min, dt_max);
  Tensor states = saved_states(in);
  Outputs out = run_forward(in, &states);
  return {std::move(out.y), std::move(out.final_state), std::move(states)};
}

SsdGradients ssd_bwd(const Tensor& dy, const MaybeTensor& dfinal_state, const Tensor& x, const Tensor& dt,
                     const Tensor& A, const Tensor& B, const Tensor& C, const MaybeTensor& D, const MaybeTensor& z,
                     const MaybeTensor& dt_bias, const MaybeTensor& initial_state, const MaybeTensor& seq_idx,
                     const Tensor& states, int64_t chunk_size, bool dt_softplus, double dt_min, double dt_max) {
  constexpr auto kOp = "ssd_bwd";
  const Inputs in =
      inputs_of(kOp, x, dt, A, B, C, D, z, dt_bias, initial_state, seq_idx, chunk_size, dt_softplus, dt_min, dt_max);
  const ssd::Problem& p = in.problem;
  const Device device = in.call.device;
  kernels::check_same_shape(x, dy, "x");
  kernels::check_device(dy, device);
  const Tensor gradient = in.rows(dy);
  if (device.is_cpu())
    in.call.shape(states, {p.batch, p.chunks(), p.heads, p.state, p.dim}, "as ssd_fwd returned them");
  else
    in.call.shape(states, {0}, "as ssd_fwd returned them");
  const Tensor saved = wide(in.call, states);
  MaybeTensor dfinal;
  if (dfinal_state) {
    in.call.shape(*dfinal_state, {p.batch, p.heads, p.dim, p.state}, "[batch, heads, dim, state]");
    dfinal = wide(in.call, *dfinal_state);
  }

  const auto make = [&](std::initializer_list<int64_t> sizes) {
    return kernels::empty(sizes, DType::kFloat32, device);
  };
  Tensor dx = kernels::empty_like(x, p.type), ddt = kernels::empty_like(dt, p.dt_type);
  Tensor dB = kernels::empty_like(B, p.type), dC = kernels::empty_like(C, p.type);
  Tensor dz = z ? kernels::empty_like(*z, p.type) : none(device);
  Tensor dinitial = initial_state ? make({p.batch, p.heads, p.dim, p.state}) : none(device);
  ssd::Backward args{.of = p,
                     .dy = tokens(gradient),
                     .dfinal = dfinal ? floats(*dfinal) : nullptr,
                     .states = floats(saved),
                     .dx = tokens(dx),
                     .dz = z ? tokens(dz) : ssd::Tokens{},
                     .ddt = tokens(ddt),
                     .dB = tokens(dB),
                     .dC = tokens(dC),
                     .dB_parts = nullptr,
                     .dC_parts = nullptr,
                     .dA = nullptr,
                     .ddt_bias = nullptr,
                     .dD = nullptr,
                     .dinitial = initial_state ? floats(dinitial) : nullptr};
  HeadGradients heads;
  kernels::run_on(
      device,
      [&](auto stream) {
        heads = {make({p.heads}), D ? kernels::empty_like(*in.D, DType::kFloat32) : none(device),
                 dt_bias ? make({p.heads}) : none(device)};
        args.dA = floats(heads.A), args.dD = D ? floats(heads.D) : nullptr;
        args.ddt_bias = dt_bias ? floats(heads.dt_bias) : nullptr;
        const Tensor memory = kernels::empty({cuda::ssd_memory(args)}, DType::kFloat32, device);
        cuda::ssd_backward(args, floats(memory), stream);
      },
      [&] { heads = run_backward(args, D, dt_bias.has_value()); });
  return {std::move(dx),      std::move(ddt), std::move(heads.A),       std::move(dB),      std::move(dC),
          std::move(heads.D), std::move(dz),  std::move(heads.dt_bias), std::move(dinitial)};
}

}  // namespace mamba
