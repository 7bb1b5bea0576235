// Experts whose weights are packed, on the CPU. Each unit of work is some outputs of one expert's rows, so that one
// token keeps every thread busy; a unit is followed by that of the next expert, so that threads have as much to do
// whichever experts the tokens chose.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/common/packing.h"
#include "kernels/common/torch/aligned.h"
#include "kernels/moe/torch-ext/cpu.h"

namespace moe::cpu {

using kernels::Packing;

// One of the two projections: packed [experts, out, bytes of a row], or plain.
struct Matrix {
  const Tensor& data;
  Packing packing;  // kNone: plain
  int64_t out, in;

  bool plain() const { return packing == Packing::kNone; }
  int64_t row_bytes() const { return in / kernels::packed_block(packing) * kernels::packed_bytes(packing); }
};

inline Packing packing_of(const char* op, const std::string& format) {
  const Packing packing = kernels::packing_named(format);
  check(format == "plain" || packing != Packing::kNone, op, ": expected the format plain, ", kernels::kPackingNames,
        "; got \"", format, "\"; dequantise the weight");
  return packing;
}

// The weights in a row of `bytes` bytes.
inline int64_t columns_of(const Tensor& data, Packing packing) {
  const int64_t block = kernels::packed_bytes(packing), bytes = data.size(2);
  check_tensor(bytes % block == 0, data, "in rows of whole blocks of ", block, " bytes; got rows of ", bytes,
               "; check the layer's sizes and its format");
  return bytes / block * kernels::packed_block(packing);
}

inline void check_packed(const Call& c, const Matrix& m) {
  if (m.plain()) return;
  kernels::check_device(m.data, c.device);
  check_tensor(m.data.scalar_type() == kernels::ScalarType::Byte && m.data.size(0) == c.p.experts &&
                   m.data.size(1) == m.out && m.in % kernels::packed_block(m.packing) == 0 &&
                   m.data.size(2) == m.row_bytes(),
               m.data, "[", c.p.experts, ", ", m.out, ", ", m.row_bytes(), "] in uint8, rows of ", m.in,
               " weights in blocks of ", kernels::packed_block(m.packing), "; got ", shape_of(m.data), " in ",
               kernels::dtype_name(m.data), "; check the layer's sizes, or dequantise the weight");
  check_tensor(m.data.is_contiguous(), m.data,
               "contiguous: experts' weights are read in their own memory; got strides; call contiguous() once, when "
               "the model is loaded");
}

// The products of some experts' rows with one projection.
class PackedProducts {
 public:
  PackedProducts(const Call& c, const Index& index, const Source& rows, const Matrix& m, void* bias, void* y)
      : p_(c.p), index_(index), rows_(rows), m_(m), bias_(bias), y_(y), size_(kernels::size_of(c.p.dtype)) {}

  // Rows in float32 are held for as many experts at once as take at most kHeld, or for one.
  void run() const {
    constexpr int64_t kHeld = int64_t{16} << 20;
    const int64_t most = std::max<int64_t>(1, kHeld / std::max<int64_t>(1, m_.in));
    std::vector<int64_t> experts;
    int64_t held = 0;
    for (int64_t e = 0; e < p_.experts; ++e) {
      if (count(e) == 0) continue;
      if (held > 0 && held + count(e) > most) multiply(experts, held), experts.clear(), held = 0;
      experts.push_back(e), held += count(e);
    }
    if (held > 0) multiply(experts, held);
  }

 private:
  int64_t count(int64_t e) const { return index_.offsets[e + 1] - index_.offsets[e]; }
  char* at(const void* data, int64_t element) const {
    return const_cast<char*>(static_cast<const char*>(data)) + element * size_;
  }
  const void* row_of(int64_t slot) const {
    return at(rows_.data, (rows_.tokens ? index_.order[slot] / p_.top_k : slot) * rows_.stride);
  }

  void multiply(const std::vector<int64_t>& experts, int64_t held) const {
    thread_local std::vector<float> kept;
    float* const x = kernels::aligned_floats(kept, held * m_.in);
    const auto many = int64_t(experts.size());
    std::vector<int64_t> first(experts.size() + 1, 0), groups(experts.size() + 1, 0);  // before each expert
    for (size_t i = 0; i < experts.size(); ++i) {
      first[i + 1] = first[i] + count(experts[i]);
      groups[i + 1] = groups[i] + (count(experts[i]) + kPackedInputRows - 1) / kPackedInputRows;
    }
    kernels::parallel_rows(groups.back(), kPackedInputRows * m_.in, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        const size_t i = size_t(std::upper_bound(groups.begin(), groups.end(), g) - groups.begin() - 1);
        read_rows(x + first[i] * m_.in, experts[i], (g - groups[i]) * kPackedInputRows);
      }
    });
    const int64_t units = (m_.out + kPackedOutputs - 1) / kPackedOutputs;
    kernels::parallel_rows(units * many, kPackedOutputs * m_.in, [&](int64_t begin, int64_t end) {
      thread_local std::vector<float> room;
      for (int64_t u = begin; u < end; ++u) {
        const size_t i = size_t(u % many);
        const int64_t from = u / many * kPackedOutputs, rows = count(experts[i]);
        float* const own = kernels::aligned_floats(room, table().packed_room(rows, m_.in));
        table().packed(of_expert(experts[i], x + first[i] * m_.in, own), from, std::min(m_.out, from + kPackedOutputs));
      }
    });
  }

  void read_rows(float* to, int64_t e, int64_t begin) const {
    const int64_t end = std::min(begin + kPackedInputRows, count(e));
    const void* rows[kPackedInputRows];
    for (int64_t r = begin; r < end; ++r) rows[r - begin] = row_of(index_.offsets[e] + r);
    table().packed_input(to, rows, p_.dtype, count(e), m_.in, begin, end);
  }

  kernels::PackedProduct of_expert(int64_t e, const float* x, float* room) const {
    return {.dtype = p_.dtype,
            .packing = m_.packing,
            .x = x,
            .w = static_cast<const char*>(m_.data.data_ptr()) + e * m_.out * m_.row_bytes(),
            .bias = bias_ == nullptr ? nullptr : at(bias_, e * m_.out),
            .y = at(y_, index_.offsets[e] * m_.out),
            .rows = count(e),
            .in = m_.in,
            .w_stride = m_.row_bytes(),
            .y_stride = m_.out,
            .room = room};
  }

  const Problem& p_;
  Index index_;
  Source rows_;
  const Matrix& m_;
  void *bias_, *y_;
  int64_t size_;
};

inline Tensor packed_forward(const Call& c, const Matrix& up, const Matrix& down) {
  const Problem& p = c.p;
  const Sorted sorted = sort(c);
  const Index index = sorted.index();
  Experts experts(c, index);
  const auto multiply = [&](void* y, const Matrix& m, const Source& rows, void* bias) {
    if (m.plain()) return experts.multiply_rows(y, m.out, rows, m.data, p.transposed, bias);
    PackedProducts(c, index, rows, m, bias, y).run();
  };
  const Tensor h = c.new_tensor({p.assignments(), p.columns()}), a = c.new_tensor({experts.used(), p.inner});
  multiply(h.data_ptr(), up, tokens(c.x), p.scale_input ? nullptr : data_of(c.b_up));
  const Activation act = activation_of(c, index, h, a);
  experts.parts(p.inner, false, [&](int64_t e, int64_t part) { table().forward(act, e, part); });
  const Tensor rows = c.new_tensor({experts.used(), p.hidden});
  multiply(rows.data_ptr(), down, slots(a, p.inner), data_of(c.b_down));
  const Tensor y = c.new_tensor({p.tokens, p.hidden});
  experts.combine(y, p.scale_input ? nullptr : c.scores.data_ptr(), rows);
  return y;
}

}  // namespace moe::cpu
