// Ops of the rotary package: schemas, checks, strides.
#include "kernels/common/torch/ops.h"
#include "kernels/rotary/cuda/rotary.h"

namespace rotary {
namespace {

using kernels::check;
using kernels::check_tensor;
using kernels::shape_of;
using kernels::Tensor;

const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(rotary);
  return chosen;
}

// Tables whose last dimension is contiguous, seen as [1 or batch, time, width].
struct Angles {
  Tensor tensor;
  int64_t width, stride[2];  // of batch (0 where it is broadcast) and time
};

Angles angles(const Tensor& given, const Tensor& q, int64_t rotary_dim) {
  const int64_t dim = given.dim(), batch = q.size(0), time = q.size(2);
  check_tensor(dim == 2 || dim == 3, given, "[batch or 1, time, rotary_dim or rotary_dim / 2]; got ", shape_of(given),
               "; select or unsqueeze it");
  const int64_t width = given.size(dim - 1), batches = dim == 3 ? given.size(0) : 1;
  check_tensor(width == rotary_dim || width * 2 == rotary_dim, given, "of width ", rotary_dim, " or ", rotary_dim / 2,
               "; got ", shape_of(given), "; pass the rotary_dim that the tables were made for");
  check_tensor(given.size(dim - 2) == time && (batches == 1 || batches == batch), given, "for ", time,
               " positions and a batch of 1 or ", batch, "; got ", shape_of(given), "; select the positions of q");
  Tensor t = given.stride(dim - 1) == 1 || width == 1 ? given : torch::stable::contiguous(given);
  const int64_t step = batches == 1 ? 0 : t.stride(0), row = t.stride(dim - 2);
  return {std::move(t), width, {step, row}};
}

RotaryTensor strided(const Tensor& x, const Tensor& y) {
  RotaryTensor r{.x = x.data_ptr(), .y = y.data_ptr(), .heads = x.size(1), .x_stride = {}, .y_stride = {}};
  for (int d = 0; d < 4; ++d) {
    r.x_stride[d] = x.stride(d);
    r.y_stride[d] = y.stride(d);
  }
  return r;
}

struct Call {
  const Tensor &q, &k, &cos, &sin;
  int64_t rotary_dim;
  bool interleaved, backward;
};

void check_heads(const Tensor& x, const Tensor& q, int64_t rotary_dim) {
  kernels::check_device(x, kernels::device_of(q));
  check_tensor(x.dim() == 4 && x.size(0) == q.size(0) && x.size(2) == q.size(2) && x.size(3) == q.size(3), x,
               "[batch, heads, time, dim] with the batch, time and dim of the queries ", shape_of(q), "; got ",
               shape_of(x), "; transpose to this order");
  check(rotary_dim >= 2 && rotary_dim % 2 == 0 && rotary_dim <= x.size(3),
        "rotary: expected an even rotary_dim from 2 to ", x.size(3), ", the size of a head; got ", rotary_dim,
        "; pass the number of rotated elements");
}

void run(const Call& c, const Tensor& q_out, const Tensor& k_out) {
  const Angles cos = angles(c.cos, c.q, c.rotary_dim), sin = angles(c.sin, c.q, c.rotary_dim);
  const kernels::Device device = kernels::device_of(c.q);
  kernels::check_device(c.cos, device);
  kernels::check_device(c.sin, device);
  const DType dtype = kernels::dtype_of(c.q), angle = kernels::dtype_of(c.cos);
  kernels::check_same_dtype(c.k, dtype, c.backward ? "dq" : "q");
  kernels::check_same_dtype(c.sin, angle, "cos");
  check_tensor(sin.width == cos.width, c.sin, "in the width of cos; got cos ", shape_of(c.cos), " and sin ",
               shape_of(c.sin), "; make both alike");
  const RotaryArgs args{.dtype = dtype,
                        .table_dtype = angle,
                        .q = strided(c.q, q_out),
                        .k = strided(c.k, k_out),
                        .cos = cos.tensor.data_ptr(),
                        .sin = sin.tensor.data_ptr(),
                        .cos_stride = {cos.stride[0], cos.stride[1]},
                        .sin_stride = {sin.stride[0], sin.stride[1]},
                        .batch = c.q.size(0),
                        .time = c.q.size(2),
                        .dim = c.q.size(3),
                        .rotary_dim = c.rotary_dim,
                        .half_table = cos.width < c.rotary_dim,
                        .interleaved = c.interleaved,
                        .backward = c.backward};
  kernels::run_on(
      device, [&](auto stream) { cuda::rotate(args, stream); },
      [&] {
        kernels::parallel_rows(rotary_blocks(args), kRotaryBlock * (args.q.heads + args.k.heads) * args.dim,
                               [&](int64_t begin, int64_t end) { table().rotate(args, begin, end); });
      });
}

std::tuple<Tensor, Tensor> rotated(const Call& c) {
  check_heads(c.q, c.q, c.rotary_dim);
  check_heads(c.k, c.q, c.rotary_dim);
  // in the memory order of the inputs: attention wants [batch, time, heads, dim] back as it gave it
  Tensor q_out = torch::stable::empty_like(c.q), k_out = torch::stable::empty_like(c.k);
  run(c, q_out, k_out);
  return {q_out, k_out};
}

std::tuple<Tensor, Tensor> rotary(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                  int64_t rotary_dim, bool interleaved) {
  return rotated({q, k, cos, sin, rotary_dim, interleaved, /*backward=*/false});
}

std::tuple<Tensor, Tensor> rotary_bwd(const Tensor& dq, const Tensor& dk, const Tensor& cos, const Tensor& sin,
                                      int64_t rotary_dim, bool interleaved) {
  return rotated({dq, dk, cos, sin, rotary_dim, interleaved, /*backward=*/true});
}

void rotary_in_place(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, int64_t rotary_dim,
                     bool interleaved) {
  check_heads(q, q, rotary_dim);
  check_heads(k, q, rotary_dim);
  for (const Tensor* t : {&q, &k}) {
    for (int d = 0; d < 4; ++d) {
      check_tensor(t->stride(d) != 0 || t->size(d) <= 1, *t, "without shared elements; got it expanded to ",
                   shape_of(*t), "; clone it or call rotary");
    }
  }
  run({q, k, cos, sin, rotary_dim, interleaved, /*backward=*/false}, q, k);
}

constexpr std::array kOps{
    kernels::op<&rotary>(
        "rotary(Tensor q, Tensor k, Tensor cos, Tensor sin, int rotary_dim, bool interleaved) -> (Tensor, Tensor)"),
    kernels::op<&rotary_bwd>("rotary_bwd(Tensor dq, Tensor dk, Tensor cos, Tensor sin, int rotary_dim, bool "
                             "interleaved) -> (Tensor, Tensor)"),
    kernels::op<&rotary_in_place>(
        "rotary_(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, int rotary_dim, bool interleaved) -> ()"),
};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace rotary
