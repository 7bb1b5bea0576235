// What the ops are given, checked: the same on every device.
#pragma once

#include <optional>

#include "kernels/attention/cpu/problem.h"
#include "kernels/common/torch/binding.h"

namespace attention {

using kernels::check;
using kernels::check_tensor;
using kernels::Device;
using kernels::shape_of;
using kernels::Tensor;
using MaybeTensor = std::optional<Tensor>;

// As the ops have them.
struct Options {
  const MaybeTensor& sinks;
  const MaybeTensor& slopes;
  double scale;
  bool causal;
  int64_t left, right, chunk;
  double softcap;
};
struct Packed {  // sequences one behind the other
  const Tensor& cu_q;
  const Tensor& cu_k;
  const MaybeTensor& used_k;
};

struct Cache {               // what a step of generation reads and writes, beside q and the keys' and values' memory
  const MaybeTensor& k_new;  // [batch, new rows, key heads, dim]
  const MaybeTensor& v_new;
  const Tensor& lengths;           // [batch]: tokens before the new ones
  const MaybeTensor& block_table;  // [batch, pages of a sequence]
  const MaybeTensor& batch_idx;    // [batch]: entry of the cache
};

// A tensor [batch, rows, heads, numbers], or [rows, heads, numbers]: that as one entry of a batch.
struct View {
  Tensor tensor;  // keeps the memory alive: the given one, or a copy where numbers are not beside each other
  int64_t batch, rows, heads, numbers;
  cpu::Operand operand;
};

inline View view_of(const Tensor& given, int64_t dims, const Device& device) {
  check_tensor(given.dim() == dims, given, dims == 4 ? "[batch, rows, heads, dim]" : "[tokens, heads, dim]", "; got ",
               shape_of(given), "; reshape it");
  kernels::check_device(given, device);
  const bool beside = given.stride(dims - 1) == 1 || given.size(dims - 1) <= 1;
  Tensor t = beside ? given : torch::stable::contiguous(given);
  const int64_t row = dims - 3;
  View view{t, dims == 4 ? t.size(0) : 1, t.size(row), t.size(row + 1), t.size(row + 2), {}};
  view.operand = {t.data_ptr(), {dims == 4 ? t.stride(0) : 0, t.stride(row), t.stride(row + 1)}};
  return view;
}

// A small tensor of any type that the kernels know, as float32 beside each other.
inline Tensor as_floats(const Tensor& given, const Device& device) {
  kernels::check_device(given, device);
  const bool wide = kernels::dtype_of(given) == DType::kFloat32;
  return torch::stable::contiguous(wide ? given : torch::stable::to(given, kernels::ScalarType::Float));
}

inline Tensor as_int32(const Tensor& given, int64_t count, const Device& device) {
  kernels::check_device(given, device);
  kernels::check_dtype(given, kernels::ScalarType::Int);
  check_tensor(given.dim() == 1 && given.size(0) == count, given, "[", count, "]; got ", shape_of(given),
               "; one number a sequence, and of cu_seqlens one more");
  return torch::stable::contiguous(given);
}

// cu_seqlens_q [sequences + 1]: how many elements those are.
inline int64_t ends_of(const Packed& p) {
  check_tensor(p.cu_q.dim() == 1 && p.cu_q.size(0) >= 1, p.cu_q, "[sequences + 1]; got ", shape_of(p.cu_q),
               "; it begins with 0, also without sequences");
  return p.cu_q.size(0);
}

// block_table [batch, pages of a sequence]
inline void check_pages(const Tensor& t, int64_t batch, const Device& device) {
  kernels::check_device(t, device);
  check_tensor(t.dim() == 2 && t.size(0) == batch && t.scalar_type() == kernels::ScalarType::Int, t, "[", batch,
               ", pages] as int32; got ", shape_of(t), " of ", kernels::dtype_name(t), "; cast or reshape it");
}

// q, k, v and options of one call.
struct Call {
  const char* op;
  Device device;
  DType dtype;
  View q, k, v;
  std::optional<Tensor> sinks, slopes;  // float32
  cpu::Attention problem;               // but for outputs and sequences

  // dims: 4, or 3 of packed sequences; sequences: how many there are.
  Call(const char* name, const Tensor& q_, const Tensor& k_, const Tensor& v_, const Options& o, int64_t dims,
       int64_t sequences)
      : op(name),
        device(kernels::device_of(q_)),
        dtype(kernels::dtype_of(q_)),
        q(view_of(q_, dims, device)),
        k(view_of(k_, dims, device)),
        v(view_of(v_, dims, device)),
        problem{} {
    kernels::check_same_dtype(k_, dtype, "q"), kernels::check_same_dtype(v_, dtype, "q");
    check(k.batch == v.batch && k.rows == v.rows && k.heads == v.heads, op,
          ": expected k and v alike but in their last dimension; got ", shape_of(k_), " and ", shape_of(v_));
    check(q.numbers == k.numbers && q.numbers > 0 && v.numbers > 0, op,
          ": expected q and k with heads of one size, of 1 or more; got ", shape_of(q_), " and ", shape_of(k_));
    check(k.heads > 0 && q.heads % k.heads == 0, op, ": expected query heads in a multiple of the ", k.heads,
          " key heads; got ", q.heads, "; query heads share key heads in groups of equal size");
    problem.dtype = dtype;
    problem.heads = q.heads;
    problem.key_heads = k.heads;
    problem.dim = q.numbers;
    problem.value_dim = v.numbers;
    problem.q = q.operand;
    problem.k = k.operand;
    problem.v = v.operand;
    take(o, sequences);
  }

 private:
  void take(const Options& o, int64_t sequences) {
    check(o.scale - o.scale == 0, op, ": expected a finite scale; got ", o.scale);
    check(o.softcap >= 0 && o.softcap <= 3e38, op, ": expected a finite softcap of 0 or more; got ", o.softcap,
          "; 0 switches it off");
    check(o.left >= kNoLimit && o.right >= kNoLimit, op, ": expected window sides of 0 or more, or -1 for none; got ",
          o.left, " and ", o.right);
    check(o.chunk >= 0, op, ": expected a chunk of 1 or more, or 0 for none; got ", o.chunk);
    const int64_t all = q.rows + k.rows * k.batch;  // no row is further from a key
    const auto side = [&](int64_t n) { return n >= all ? kNoLimit : n; };
    problem.scale = float(o.scale);
    problem.softcap = float(o.softcap);
    problem.left = side(o.left);
    problem.right = o.causal ? 0 : side(o.right);
    problem.chunk = o.chunk;
    if (o.sinks) {
      check_tensor(o.sinks->dim() == 1 && o.sinks->size(0) == q.heads, *o.sinks, "[", q.heads, "]; got ",
                   shape_of(*o.sinks), "; one number a query head");
      sinks = as_floats(*o.sinks, device);
      problem.sinks = static_cast<const float*>(sinks->data_ptr());
    }
    if (!o.slopes) return;
    const int64_t dim = o.slopes->dim();
    check_tensor((dim == 1 || (dim == 2 && o.slopes->size(0) == sequences)) && o.slopes->size(dim - 1) == q.heads,
                 *o.slopes, "[", q.heads, "] or [", sequences, ", ", q.heads, "]; got ", shape_of(*o.slopes),
                 "; one number a query head");
    slopes = as_floats(*o.slopes, device);
    problem.slopes = static_cast<const float*>(slopes->data_ptr());
    problem.slopes_batch = dim == 2 ? q.heads : 0;
  }
};

struct Outputs {
  Tensor out;
  std::optional<Tensor> lse;  // where it was wanted
};

inline Tensor new_tensor(const View& like, int64_t dims, int64_t heads, int64_t numbers, DType dtype,
                         const Device& device) {
  if (dims == 4) return kernels::empty({like.batch, like.rows, heads, numbers}, dtype, device);
  return kernels::empty({like.rows, heads, numbers}, dtype, device);
}

// [batch, heads, rows], of packed sequences [heads, rows].
inline Tensor new_lse(const View& q, int64_t dims, const Device& device) {
  if (dims == 4) return kernels::empty({q.batch, q.heads, q.rows}, DType::kFloat32, device);
  return kernels::empty({q.heads, q.rows}, DType::kFloat32, device);
}

inline cpu::Operand operand_of(const Tensor& t) {  // contiguous, of 4 or 3 dimensions
  const int64_t dims = t.dim();
  return {t.data_ptr(), {dims == 4 ? t.stride(0) : 0, t.stride(dims - 3), t.stride(dims - 2)}};
}

// lse, or dlse, as backward reads it.
inline Tensor checked_lse(const Tensor& given, const View& q, int64_t dims, const Device& device) {
  kernels::check_device(given, device);
  const int64_t head = dims - 3;
  check_tensor(given.scalar_type() == kernels::ScalarType::Float && given.dim() == dims - 1 &&
                   (dims == 3 || given.size(0) == q.batch) && given.size(head) == q.heads &&
                   given.size(head + 1) == q.rows,
               given, "as float32 ", dims == 4 ? "[batch, heads, rows]" : "[heads, tokens]", " of q; got ",
               shape_of(given), " in ", kernels::dtype_name(given), "; pass the forward's own");
  return torch::stable::contiguous(given);
}

}  // namespace attention
