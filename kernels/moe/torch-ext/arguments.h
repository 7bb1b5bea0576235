// The arguments of the ops: checked, and as the kernels see them.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/common/torch/binding.h"
#include "kernels/moe/moe.h"

namespace moe {

using kernels::check;
using kernels::check_tensor;
using kernels::Device;
using kernels::Rows;
using kernels::shape_of;
using kernels::Tensor;
using MaybeTensor = std::optional<Tensor>;

struct Options {
  const std::string& activation;
  double alpha, limit;
  bool interleaved, transposed, scale_input;
};

inline Act act_of(const char* op, const std::string& name) {
  constexpr std::array<std::pair<const char*, Act>, 10> kNames{{{"swiglu", Act::kSwiGlu},
                                                                {"geglu", Act::kGeGlu},
                                                                {"geglu_tanh", Act::kGeGluTanh},
                                                                {"reglu", Act::kReGlu},
                                                                {"swiglu_oai", Act::kSwiGluOai},
                                                                {"swiglu_clamped", Act::kSwiGluClamped},
                                                                {"relu2", Act::kRelu2},
                                                                {"silu", Act::kSilu},
                                                                {"gelu", Act::kGelu},
                                                                {"gelu_tanh", Act::kGeluTanh}}};
  std::string known;
  for (const auto& [text, act] : kNames) {
    if (name == text) return act;
    (known += known.empty() ? "" : ", ") += text;
  }
  check(false, op, ": expected activation one of ", known, "; got \"", name, "\"; pass one of these");
  return Act::kSwiGlu;
}

inline Tensor packed(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }
inline void* data_of(const MaybeTensor& t) { return t ? t->data_ptr() : nullptr; }

inline void check_like(const Tensor& t, std::initializer_list<int64_t> sizes, DType dtype, const Device& device) {
  kernels::check_device(t, device);
  bool same = t.dim() == int64_t(sizes.size());
  for (size_t d = 0; same && d < sizes.size(); ++d) same = t.size(int64_t(d)) == sizes.begin()[d];
  if (!same) {
    std::string wanted;
    for (const int64_t n : sizes) (wanted += wanted.empty() ? "" : ", ") += std::to_string(n);
    check_tensor(false, t, "[", wanted, "]; got ", shape_of(t), "; check the layer's sizes");
  }
  kernels::check_same_dtype(t, dtype, "x");
}

// What every op is given.
struct Call {
  const char* op;
  Device device;
  Rows x;
  Tensor index, scores;  // contiguous
  bool index64;
  const Tensor &w_up, &w_down;
  MaybeTensor b_up, b_down;
  Problem p;

  Call(const char* name, const Tensor& x_given, const Tensor& index_given, const Tensor& weights, const Tensor& up,
       const MaybeTensor& up_bias, const Tensor& down, const MaybeTensor& down_bias, const Options& o)
      : Call(name, x_given, index_given, weights, up, up_bias, down, down_bias, o,
             inner_of(name, up, down, o.transposed)) {
    check_up(), check_down();
  }

  // Of weights that are not checked here, and are of that width inside.
  Call(const char* name, const Tensor& x_given, const Tensor& index_given, const Tensor& weights, const Tensor& up,
       const MaybeTensor& up_bias, const Tensor& down, const MaybeTensor& down_bias, const Options& o, int64_t inner)
      : op(name),
        device(kernels::device_of(x_given)),
        x(kernels::as_rows(x_given, device)),
        index(packed(few_enough(name, index_given))),
        scores(packed(weights)),
        index64(index_given.scalar_type() == kernels::ScalarType::Long),
        w_up(up),
        w_down(down) {
    check_tensor(x_given.dim() == 2, x_given, "[tokens, hidden]; got ", shape_of(x_given), "; flatten it");
    check_routing(index_given, weights);
    const Act act = act_of(op, o.activation);
    check(!o.interleaved || has_gate(act), op, ": expected interleaved for activations with a gate; got it for ",
          o.activation, "; pass false");
    const DType dtype = kernels::dtype_of(x_given);
    const auto type = weights.scalar_type();
    check_tensor(type == kernels::ScalarType::Float || type == x_given.scalar_type(), weights,
                 "in float32 or x's dtype, ", kernels::dtype_name(x_given), "; got ", kernels::dtype_name(weights),
                 "; cast it");
    p = {.dtype = dtype,
         .score_dtype = kernels::dtype_of(weights),
         .act = act,
         .alpha = float(o.alpha),
         .limit = float(o.limit),
         .interleaved = o.interleaved,
         .transposed = o.transposed,
         .scale_input = o.scale_input,
         .tokens = x_given.size(0),
         .top_k = index_given.size(1),
         .experts = up.size(0),
         .hidden = x_given.size(1),
         .inner = inner};
    check(p.experts >= 1 && p.hidden >= 1 && p.inner >= 1, op,
          ": expected at least one expert, one number in and one inside; got w_up ", shape_of(up), " and w_down ",
          shape_of(down), "; check the layer's sizes");
    b_up = checked_bias(up_bias, p.columns());
    b_down = checked_bias(down_bias, p.hidden);
  }

  static void check_dimensions(const char* op, const Tensor& up, const Tensor& down) {
    check(up.dim() == 3 && down.dim() == 3, op, ": expected w_up and w_down of three dimensions, experts first; got ",
          shape_of(up), " and ", shape_of(down), "; stack the experts' weights");
  }
  void check_up() const { check_weight(w_up, p.hidden, p.columns()); }  // as plain weights
  void check_down() const { check_weight(w_down, p.inner, p.hidden); }

  Tensor new_tensor(std::initializer_list<int64_t> sizes) const { return kernels::empty(sizes, p.dtype, device); }
  Tensor new_like(const Tensor& t) const { return kernels::empty_like(t, p.dtype); }
  Tensor new_ints(int64_t count) const {
    return kernels::empty_like_shape(&count, 1, aoti_torch_dtype_int32(), device);
  }
  Tensor new_floats(std::initializer_list<int64_t> sizes) const {
    return kernels::empty(sizes, DType::kFloat32, device);
  }

 private:
  static const Tensor& few_enough(const char* op, const Tensor& indices) {  // before a copy of them asks for memory
    check(indices.numel() <= kMaxAssignments, op, ": expected at most 2^31 - 2^21 assignments; got ", indices.numel(),
          ", the numbers of index ", shape_of(indices), "; split the tokens");
    return indices;
  }
  void check_routing(const Tensor& indices, const Tensor& weights) const {
    const auto type = indices.scalar_type();
    check_tensor(indices.dim() == 2 && indices.size(0) == x.rows, indices, "[", x.rows, ", experts a token]; got ",
                 shape_of(indices), "; flatten it as x");
    check_tensor(type == kernels::ScalarType::Long || type == kernels::ScalarType::Int, indices,
                 "as int64 or int32; got ", kernels::dtype_name(indices), "; cast it");
    check_tensor(weights.dim() == 2 && weights.size(0) == x.rows && weights.size(1) == indices.size(1), weights,
                 "in index's shape, ", shape_of(indices), "; got ", shape_of(weights), "; a number for each choice");
    kernels::check_device(indices, device);
    kernels::check_device(weights, device);
  }
  static int64_t inner_of(const char* op, const Tensor& up, const Tensor& down, bool transposed) {
    check_dimensions(op, up, down);
    return down.size(transposed ? 1 : 2);
  }
  void check_weight(const Tensor& w, int64_t in, int64_t out) const {
    check_like(w, {p.experts, p.transposed ? in : out, p.transposed ? out : in}, p.dtype, device);
    check_tensor(w.is_contiguous(), w,
                 "contiguous: experts' weights are read where they lie; got strides; call contiguous() once, when the "
                 "model is loaded");
  }
  MaybeTensor checked_bias(const MaybeTensor& b, int64_t n) const {
    if (!b) return std::nullopt;
    check_like(*b, {p.experts, n}, p.dtype, device);
    return packed(*b);
  }
};

inline int32_t* ints(const Tensor& t) { return static_cast<int32_t*>(t.data_ptr()); }

struct Sorted {
  Tensor order, slots, offsets;

  Index index() const { return {ints(order), ints(slots), ints(offsets)}; }
};

struct Forward {
  Tensor y, h = {};
  Sorted sorted = {};
};

inline Source slots(const Tensor& t, int64_t cols) { return {t.data_ptr(), cols, cols, false}; }
inline Source tokens(const Rows& rows) { return {rows.data, rows.cols, rows.stride, true}; }

inline Activation activation_of(const Call& c, const Index& index, const Tensor& h, const Tensor& a) {
  return {.p = c.p,
          .index = index,
          .scores = c.scores.data_ptr(),
          .h = h.data_ptr(),
          .bias = c.p.scale_input ? data_of(c.b_up) : nullptr,
          .a = a.data_ptr(),
          .dh = nullptr,
          .ds = nullptr,
          .db = nullptr};
}

// What forward for training saved, in backward.
struct Saved {
  Tensor h;
  Sorted sorted;
  Rows dy;

  Saved(const Call& c, const Tensor& dy_given, const Tensor& h_given, const Tensor& order_given,
        const Tensor& slots_given, const Tensor& offsets_given)
      : h(packed(h_given)),
        sorted{checked(c, order_given, c.p.assignments()), checked(c, slots_given, c.p.assignments()),
               checked(c, offsets_given, c.p.experts + 1)},
        dy(kernels::as_rows(dy_given, c.device)) {
    check_like(dy_given, {c.p.tokens, c.p.hidden}, c.p.dtype, c.device);
    check_like(h_given, {c.p.assignments(), c.p.columns()}, c.p.dtype, c.device);
  }

 private:
  static Tensor checked(const Call& c, const Tensor& t, int64_t count) {
    kernels::check_device(t, c.device);
    check_tensor(t.scalar_type() == kernels::ScalarType::Int && t.dim() == 1 && t.size(0) == count, t, "[", count,
                 "] as int32, as moe_experts_train gave it; got ", shape_of(t), " in ", kernels::dtype_name(t),
                 "; pass what it gave");
    return packed(t);
  }
};

struct Gradients {
  Tensor dx, dscores, dw_up, db_up, dw_down, db_down;  // of 0 elements where not wanted
};

inline Gradients new_gradients(const Call& c, bool weight_grads) {
  const auto wanted = [&](bool is, const Tensor& like) { return is ? c.new_like(like) : c.new_tensor({0}); };
  const bool up = weight_grads && c.b_up.has_value(), down = weight_grads && c.b_down.has_value();
  return {c.new_tensor({c.p.tokens, c.p.hidden}), kernels::empty({c.p.tokens, c.p.top_k}, c.p.score_dtype, c.device),
          wanted(weight_grads, c.w_up),           wanted(up, up ? *c.b_up : c.w_up),
          wanted(weight_grads, c.w_down),         wanted(down, down ? *c.b_down : c.w_down)};
}

}  // namespace moe
