// The ops where their tensors are on a GPU: nothing here waits for it.
#pragma once

#include "kernels/moe/cuda/moe.h"
#include "kernels/moe/torch-ext/arguments.h"

namespace moe::gpu {

using kernels::Stream;

// hits: which experts have assignments, where products want to know.
inline Sorted sort(const Call& c, MaybeTensor& hits, Stream stream) {
  const Problem& p = c.p;
  const int64_t count = p.assignments();
  Sorted s{c.new_ints(count), c.new_ints(count), c.new_ints(p.experts + 1)};
  if (count == 0) {
    torch::stable::zero_(s.offsets);
    return s;
  }
  if (cuda::want_hits(p)) hits = c.new_ints((1 + cuda::max_hits(p)) * int64_t{sizeof(cuda::Hit) / 4});
  const Tensor counts = c.new_ints(cuda::sort_counts(count, p.experts));
  cuda::sort({.index = c.index.data_ptr(),
              .index64 = c.index64,
              .order = ints(s.order),
              .slots = ints(s.slots),
              .offsets = ints(s.offsets),
              .counts = ints(counts),
              .hits = static_cast<cuda::Hit*>(data_of(hits)),
              .assignments = count,
              .experts = p.experts},
             stream);
  return s;
}

// fn(stream) with the tensors' device current.
template <class Fn>
void on_device(const Call& c, const Fn& fn) {
  kernels::run_on(c.device, fn, [] {});
}

// Of a handful of tokens, where there are kernels for that.
inline bool decode(const Call& c, bool keep, Forward& r, Stream stream) {
  cuda::Decode d{.p = c.p,
                 .x = c.x.data,
                 .index = c.index.data_ptr(),
                 .scores = c.scores.data_ptr(),
                 .x_stride = c.x.stride,
                 .index64 = c.index64,
                 .w_up = c.w_up.data_ptr(),
                 .b_up = data_of(c.b_up),
                 .w_down = c.w_down.data_ptr(),
                 .b_down = data_of(c.b_down),
                 .slots = nullptr,
                 .h = nullptr,
                 .a = nullptr,
                 .y = r.y.data_ptr()};
  const bool one = cuda::one_token_takes(d);
  if (!one && !cuda::decode_takes(d)) return false;
  if (keep) {
    MaybeTensor hits;
    r.sorted = sort(c, hits, stream);
    r.h = c.new_tensor({c.p.assignments(), c.p.columns()});
    d.slots = ints(r.sorted.slots), d.h = r.h.data_ptr();
  }
  const Tensor a = c.new_tensor({c.p.assignments(), c.p.inner});
  d.a = a.data_ptr();
  one ? cuda::one_token(d, stream) : cuda::decode(d, stream);
  return true;
}

// keep: h, for backward.
inline Forward forward(const Call& c, bool keep) {
  const Problem& p = c.p;
  Forward r{.y = c.new_tensor({p.tokens, p.hidden})};
  on_device(c, [&](Stream stream) {
    if (decode(c, keep, r, stream)) return;
    MaybeTensor hits;
    r.sorted = sort(c, hits, stream);
    const Index index = r.sorted.index();
    cuda::Product up{.p = p,
                     .index = index,
                     .rows = tokens(c.x),
                     .w = c.w_up.data_ptr(),
                     .by_inputs = p.transposed,
                     .bias = p.scale_input ? nullptr : data_of(c.b_up),
                     .y = nullptr,
                     .out = p.columns(),
                     .hits = static_cast<cuda::Hit*>(data_of(hits))};
    const Tensor a = c.new_tensor({p.assignments(), p.inner});
    const bool at_once = cuda::can_activate(up);
    if (keep || !at_once) r.h = c.new_tensor({p.assignments(), p.columns()}), up.y = r.h.data_ptr();
    if (at_once) {
      cuda::multiply_and_activate(up, a.data_ptr(), stream);
    } else {
      cuda::multiply(up, stream);
      cuda::activate(activation_of(c, index, r.h, a), stream);
    }
    const Tensor rows = c.new_tensor({p.assignments(), p.hidden});
    cuda::multiply(cuda::Product{.p = p,
                                 .index = index,
                                 .rows = slots(a, p.inner),
                                 .w = c.w_down.data_ptr(),
                                 .by_inputs = p.transposed,
                                 .bias = data_of(c.b_down),
                                 .y = rows.data_ptr(),
                                 .out = p.hidden,
                                 .hits = up.hits,
                                 .after_product = at_once && up.hits != nullptr},
                   stream);
    cuda::combine(p, index, p.scale_input ? nullptr : c.scores.data_ptr(), rows.data_ptr(), r.y.data_ptr(), stream);
  });
  return r;
}

// dh: where dh goes, saved.h itself or another.
inline Gradients backward(const Call& c, const Saved& saved, const Tensor& dh, bool weight_grads) {
  const Problem& p = c.p;
  Gradients g = new_gradients(c, weight_grads);
  const Index index = saved.sorted.index();
  on_device(c, [&](Stream stream) {
    torch::stable::zero_(g.dscores);
    const Tensor a = c.new_tensor({p.assignments(), p.inner});
    cuda::multiply(cuda::Product{.p = p,
                                 .index = index,
                                 .rows = tokens(saved.dy),
                                 .w = c.w_down.data_ptr(),
                                 .by_inputs = !p.transposed,
                                 .bias = nullptr,
                                 .y = a.data_ptr(),
                                 .out = p.inner},
                   stream);
    Activation act = activation_of(c, index, saved.h, a);
    act.dh = dh.data_ptr();
    cuda::activate_backward(
        act,
        {.dy = saved.dy.data, .b2 = data_of(c.b_down), .dy_stride = saved.dy.stride, .dscores = g.dscores.data_ptr()},
        stream);
    const auto dh_rows = slots(dh, p.columns()), a_rows = slots(a, p.inner), dy = tokens(saved.dy), x = tokens(c.x);
    if (weight_grads && c.b_up) {  // of dh before it is scaled
      cuda::bias_gradient(p, index,
                          {.rows = dh.data_ptr(),
                           .stride = p.columns(),
                           .cols = p.columns(),
                           .tokens = false,
                           .scores = nullptr,
                           .db = g.db_up.data_ptr()},
                          stream);
    }
    if (p.scale_input) cuda::scale_rows(p, index, c.scores.data_ptr(), dh.data_ptr(), p.columns(), stream);
    if (weight_grads) {
      const bool t = p.transposed;
      cuda::multiply(
          cuda::WeightGradient{
              .p = p, .index = index, .left = t ? a_rows : dy, .right = t ? dy : a_rows, .dw = g.dw_down.data_ptr()},
          stream);
      cuda::multiply(
          cuda::WeightGradient{
              .p = p, .index = index, .left = t ? x : dh_rows, .right = t ? dh_rows : x, .dw = g.dw_up.data_ptr()},
          stream);
    }
    if (weight_grads && c.b_down) {
      cuda::bias_gradient(p, index,
                          {.rows = saved.dy.data,
                           .stride = saved.dy.stride,
                           .cols = p.hidden,
                           .tokens = true,
                           .scores = p.scale_input ? nullptr : c.scores.data_ptr(),
                           .db = g.db_down.data_ptr()},
                          stream);
    }
    const Tensor rows = c.new_tensor({p.assignments(), p.hidden});
    cuda::multiply(cuda::Product{.p = p,
                                 .index = index,
                                 .rows = dh_rows,
                                 .w = c.w_up.data_ptr(),
                                 .by_inputs = !p.transposed,
                                 .bias = nullptr,
                                 .y = rows.data_ptr(),
                                 .out = p.hidden},
                   stream);
    cuda::combine(p, index, nullptr, rows.data_ptr(), g.dx.data_ptr(), stream);
  });
  return g;
}

}  // namespace moe::gpu
