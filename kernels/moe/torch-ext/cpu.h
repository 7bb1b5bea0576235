// The ops on the CPU. Experts with few rows stream their weights, and of float32, or bfloat16 by pairs, those with some
// rows keep these transposed, both in units of some outputs of one expert that all threads share; the others are GEMMs
// of torch's own (MKL, oneDNN), each on all threads.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/common/cpu/pairs.h"
#include "kernels/common/torch/gemm.h"
#include "kernels/moe/torch-ext/arguments.h"

namespace moe::cpu {

inline const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(moe);
  return chosen;
}

// Stable counting sort of assignments by expert.
inline Sorted sort(const Call& c) {
  const Problem& p = c.p;
  const int64_t count = p.assignments();
  Sorted s{c.new_ints(count), c.new_ints(count), c.new_ints(p.experts + 1)};
  int32_t *order = ints(s.order), *slots = ints(s.slots), *offsets = ints(s.offsets);
  const void* index = c.index.data_ptr();
  const auto expert = [&](int64_t a) {
    const int64_t e = c.index64 ? static_cast<const int64_t*>(index)[a] : static_cast<const int32_t*>(index)[a];
    return e >= 0 && e < p.experts ? e : -1;
  };
  std::fill_n(offsets, p.experts + 1, 0);
  for (int64_t a = 0; a < count; ++a) {
    if (const int64_t e = expert(a); e >= 0) ++offsets[e + 1];
  }
  for (int64_t e = 0; e < p.experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<int32_t> next(offsets, offsets + p.experts);
  for (int64_t a = 0; a < count; ++a) {
    const int64_t e = expert(a);
    slots[a] = e < 0 ? -1 : next[e]++;
    if (e >= 0) order[slots[a]] = int32_t(a);
  }
  return s;
}

using kernels::Window;
inline Window window(void* data, int64_t rows, int64_t cols) { return {data, rows, cols, cols}; }

// out = a @ b, + bias [out.cols] in every row where there is one.
inline void multiply(const Window& out, const Window& a, const Window& b, void* bias, DType dtype) {
  const Tensor to = out.tensor(dtype);
  const Tensor add = bias == nullptr ? to : Window{bias, out.rows, out.cols, 0, 1}.tensor(dtype);
  kernels::multiply(to, a.tensor(dtype), b.tensor(dtype), add, bias == nullptr ? 0 : 1, 1);
}

// One call's experts, and what their rows go through.
class Experts {
 public:
  Experts(const Call& c, const Index& index)
      : c_(c),
        p_(c.p),
        index_(index),
        size_(kernels::size_of(p_.dtype)),
        pairs_(p_.dtype == DType::kBFloat16 && kernels::multiplies_pairs()) {
    const bool whole_pairs = pairs_ && p_.hidden % 2 == 0 && p_.inner % 2 == 0;
    const int64_t some = p_.dtype == DType::kFloat32 || whole_pairs ? kSomeRows : 0;
    for (int64_t e = 0; e < p_.experts; ++e) {
      if (count(e) > kFewRows) {
        (count(e) <= some ? some_ : many_).push_back(e);
        some_and_many_.push_back(e);
      }
      if (count(e) > 0 && count(e) <= kFewRows) few_.push_back(e);
      max_ = std::max(max_, count(e));
    }
  }

  int64_t count(int64_t e) const { return index_.offsets[e + 1] - index_.offsets[e]; }
  int64_t used() const { return index_.offsets[p_.experts]; }

  // y[slot] = rows of slot times W of its expert, W [out, in] or by_inputs [in, out], + bias.
  void multiply_rows(void* y, int64_t out, const Source& rows, const Tensor& w, bool by_inputs, void* bias) {
    few_products(y, out, rows, w, by_inputs, bias);
    if (!by_inputs) some_products(y, out, rows, w, bias);
    for (const int64_t e : by_inputs ? some_and_many_ : many_) {
      void* weight = at(w.data_ptr(), e * out * rows.cols);
      const Window b = by_inputs ? window(weight, rows.cols, out) : window(weight, out, rows.cols).transposed();
      multiply(window(at(y, index_.offsets[e] * out), count(e), out), rows_of(rows, e, first_), b,
               bias == nullptr ? nullptr : at(bias, e * out), p_.dtype);
    }
  }

  // dw[e] = left^T right over the expert's rows, [left.cols, right.cols]; flipped: its transpose.
  void multiply_weights(const Tensor& dw, const Source& left, const Source& right, bool flipped) {
    const int64_t numbers = left.cols * right.cols;
    for (int64_t e = 0; e < p_.experts; ++e) {
      void* to = at(dw.data_ptr(), e * numbers);
      if (count(e) == 0) {
        std::memset(to, 0, size_t(numbers * size_));
        continue;
      }
      const Window a = rows_of(left, e, first_), b = rows_of(right, e, second_);
      if (flipped)
        multiply(window(to, right.cols, left.cols), b.transposed(), a, nullptr, p_.dtype);
      else
        multiply(window(to, left.cols, right.cols), a.transposed(), b, nullptr, p_.dtype);
    }
  }

  // fn(expert, part) for every part of `cols` columns of every expert; empty ones too where they are asked for.
  template <class Fn>
  void parts(int64_t cols, bool empty_too, const Fn& fn) const {
    const int64_t per_expert = (cols + kPart - 1) / kPart;
    std::vector<int64_t> experts;
    for (int64_t e = 0; e < p_.experts; ++e) {
      if (empty_too || count(e) > 0) experts.push_back(e);
    }
    const int64_t units = int64_t(experts.size()) * per_expert;
    const int64_t each = units > 0 ? std::max<int64_t>(1, used() * cols / units) : 1;
    kernels::parallel_rows(units, each, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) fn(experts[u / per_expert], u % per_expert);
    });
  }

  void combine(const Tensor& y, const void* scores, const Tensor& rows) const {
    kernels::parallel_rows(p_.tokens, p_.hidden * p_.top_k, [&](int64_t begin, int64_t end) {
      table().combine(p_, index_, scores, rows.data_ptr(), y.data_ptr(), begin, end);
    });
  }

 private:
  void* at(const void* data, int64_t element) const {
    return const_cast<char*>(static_cast<const char*>(data)) + element * size_;
  }
  const void* row_of(const Source& s, int64_t slot) const {
    return at(s.data, (s.tokens ? index_.order[slot] / p_.top_k : slot) * s.stride);
  }

  Window rows_of(const Source& s, int64_t e, std::optional<Tensor>& memory) {
    if (!s.tokens) return window(at(s.data, index_.offsets[e] * s.cols), count(e), s.cols);
    if (!memory) memory = c_.new_tensor({max_, std::max(p_.hidden, p_.columns())});
    const Window to = window(memory->data_ptr(), count(e), s.cols);
    kernels::parallel_rows(count(e), s.cols, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        std::memcpy(at(to.data, r * s.cols), row_of(s, index_.offsets[e] + r), size_t(s.cols * size_));
    });
    return to;
  }

  void few_products(void* y, int64_t out, const Source& rows, const Tensor& w, bool by_inputs, void* bias) const {
    if (few_.empty()) return;
    std::vector<int64_t> first(few_.size() + 1, 0);  // rows before each expert's
    for (size_t i = 0; i < few_.size(); ++i) first[i + 1] = first[i] + count(few_[i]);
    const bool pairs = pairs_ && !by_inputs;
    const Tensor copies = kernels::empty({first.back(), rows.cols}, pairs ? DType::kBFloat16 : DType::kFloat32);
    auto* floats = pairs ? nullptr : static_cast<float*>(copies.data_ptr());
    auto* narrow = pairs ? static_cast<kernels::BFloat16*>(copies.data_ptr()) : nullptr;
    const int64_t units = (out + kOutputs - 1) / kOutputs, experts = int64_t(few_.size());
    kernels::parallel_rows(experts, 4 * rows.cols, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t r = 0; r < count(few_[i]); ++r) {
          const void* row = row_of(rows, index_.offsets[few_[i]] + r);
          const int64_t to = (first[i] + r) * rows.cols;
          if (pairs)
            std::memcpy(narrow + to, row, size_t(rows.cols * size_));
          else
            table().widen(floats + to, row, p_.dtype, rows.cols, by_inputs);
        }
      }
    });
    kernels::parallel_rows(experts * units, kOutputs * rows.cols, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        const int64_t i = u / units, e = few_[i], from = u % units * kOutputs;
        table().few_rows({.dtype = p_.dtype,
                          .rows = pairs ? nullptr : floats + first[i] * rows.cols,
                          .w = at(w.data_ptr(), e * out * rows.cols),
                          .by_inputs = by_inputs,
                          .narrow = pairs ? narrow + first[i] * rows.cols : nullptr,
                          .bias = bias == nullptr ? nullptr : at(bias, e * out),
                          .y = at(y, index_.offsets[e] * out),
                          .count = count(e),
                          .in = rows.cols,
                          .out = out},
                         from, std::min(out, from + kOutputs));
      }
    });
  }

  void some_products(void* y, int64_t out, const Source& rows, const Tensor& w, void* bias) const {
    if (some_.empty()) return;
    std::vector<int64_t> first(some_.size() + 1, 0);  // rows before each expert's, rounded up
    for (size_t i = 0; i < some_.size(); ++i) first[i + 1] = first[i] + (count(some_[i]) + 15) / 16 * 16;
    const int64_t steps = pairs_ ? rows.cols / 2 : rows.cols;
    const Tensor all = kernels::empty({first.back(), steps}, DType::kFloat32);
    auto* floats = static_cast<float*>(all.data_ptr());
    const int64_t units = (out + kOutputs - 1) / kOutputs, experts = int64_t(some_.size());
    kernels::parallel_rows(experts, kFewRows * rows.cols, [&](int64_t begin, int64_t end) {
      std::array<const float*, kSomeRows> from;
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t r = 0; r < count(some_[i]); ++r)
          from[r] = static_cast<const float*>(row_of(rows, index_.offsets[some_[i]] + r));
        table().to_columns(floats + first[i] * steps, from.data(), count(some_[i]), steps);
      }
    });
    kernels::parallel_rows(experts * units, kOutputs * rows.cols, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        const int64_t i = u / units, e = some_[i], from = u % units * kOutputs;
        table().some_rows({.dtype = p_.dtype,
                           .columns = floats + first[i] * steps,
                           .wide = first[i + 1] - first[i],
                           .w = at(w.data_ptr(), e * out * rows.cols),
                           .bias = bias == nullptr ? nullptr : at(bias, e * out),
                           .y = at(y, index_.offsets[e] * out),
                           .count = count(e),
                           .steps = steps,
                           .out = out},
                          from, std::min(out, from + kOutputs));
      }
    });
  }

  const Call& c_;
  const Problem& p_;
  Index index_;
  int64_t size_, max_ = 0;
  bool pairs_;  // of bfloat16 are multiplied at once
  std::vector<int64_t> few_, some_, many_, some_and_many_;
  std::optional<Tensor> first_, second_;  // gathered rows of one expert
};

inline Forward forward(const Call& c) {
  const Problem& p = c.p;
  Forward r{c.new_tensor({p.tokens, p.hidden}), c.new_tensor({p.assignments(), p.columns()}), sort(c)};
  const Index index = r.sorted.index();
  Experts experts(c, index);
  experts.multiply_rows(r.h.data_ptr(), p.columns(), tokens(c.x), c.w_up, p.transposed,
                        p.scale_input ? nullptr : data_of(c.b_up));
  const Tensor a = c.new_tensor({experts.used(), p.inner});
  const Activation act = activation_of(c, index, r.h, a);
  experts.parts(p.inner, false, [&](int64_t e, int64_t part) { table().forward(act, e, part); });
  const Tensor rows = c.new_tensor({experts.used(), p.hidden});
  experts.multiply_rows(rows.data_ptr(), p.hidden, slots(a, p.inner), c.w_down, p.transposed, data_of(c.b_down));
  experts.combine(r.y, p.scale_input ? nullptr : c.scores.data_ptr(), rows);
  return r;
}

// dh: where dh goes, saved.h itself or another.
inline Gradients backward(const Call& c, const Saved& saved, const Tensor& dh, bool weight_grads) {
  const Problem& p = c.p;
  Gradients g = new_gradients(c, weight_grads);
  const Index index = saved.sorted.index();
  Experts experts(c, index);
  const int64_t parts = (p.inner + kPart - 1) / kPart;
  const Tensor a = c.new_tensor({experts.used(), p.inner}), ds = c.new_floats({experts.used(), parts});
  experts.multiply_rows(a.data_ptr(), p.inner, tokens(saved.dy), c.w_down, !p.transposed, nullptr);
  Activation act = activation_of(c, index, saved.h, a);
  act.dh = dh.data_ptr();
  act.ds = static_cast<float*>(ds.data_ptr());
  if (weight_grads && c.b_up) act.db = g.db_up.data_ptr();
  experts.parts(p.inner, act.db != nullptr, [&](int64_t e, int64_t part) { table().backward(act, e, part); });
  kernels::parallel_rows(p.tokens, p.top_k * (c.b_down ? p.hidden : parts), [&](int64_t begin, int64_t end) {
    table().score_gradients(act, saved.dy.data, saved.dy.stride, data_of(c.b_down), g.dscores.data_ptr(), begin, end);
  });
  const auto dy = tokens(saved.dy), dh_rows = slots(dh, p.columns());
  if (weight_grads) {
    experts.multiply_weights(g.dw_down, dy, slots(a, p.inner), p.transposed);
    experts.multiply_weights(g.dw_up, dh_rows, tokens(c.x), p.transposed);
    if (c.b_down)
      experts.parts(p.hidden, true, [&](int64_t e, int64_t part) {
        table().bias_gradient(act, saved.dy.data, saved.dy.stride, g.db_down.data_ptr(), e, part);
      });
  }
  const Tensor rows = c.new_tensor({experts.used(), p.hidden});
  experts.multiply_rows(rows.data_ptr(), p.hidden, dh_rows, c.w_up, !p.transposed, nullptr);
  experts.combine(g.dx, nullptr, rows);
  return g;
}

}  // namespace moe::cpu
