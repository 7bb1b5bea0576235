// GPU kernels of this package on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"
#include "kernels/rotary/cuda/rotary.cu"

namespace {

using namespace emulated;

// Rows of heads one after the other, of positions, or of every second element.
enum class Layout { kHeads, kPositions, kEverySecond };

struct Case {
  int64_t batch, heads, kv_heads, time, dim, rotary_dim;
  bool whole;  // vectors of every type
  Layout layout = Layout::kHeads;
  int64_t shift = 0;
};
constexpr Case kCases[] = {
    {1, 1, 1, 1, 2, 2, false},                          // one pair
    {1, 9, 3, 1, 64, 64, true},                         // a step of decoding
    {2, 4, 2, 7, 64, 32, true},                         // half of a head passes through
    {2, 2, 2, 9, 6, 6, false},                          // halves that are odd
    {1, 3, 1, 5, 21, 12, false},                        // a head that is odd
    {2, 5, 1, 3, 80, 48, true},                         // items that are no power of two
    {2, 8, 2, 3, 128, 128, true, Layout::kPositions},   // several blocks
    {2, 3, 2, 5, 32, 16, false, Layout::kEverySecond},  //
    {1, 3, 2, 5, 32, 32, false, Layout::kHeads, 1},     // misaligned
    {3, 7, 5, 9, 24, 20, false, Layout::kHeads, 1},     // misaligned, several blocks
};

// One of q and k.
struct Tensor {
  int64_t heads, stride[4], count;

  Tensor(const Case& c, int64_t heads) : heads(heads) {
    const int64_t each = c.layout == Layout::kEverySecond ? 2 : 1, row = c.dim * each;
    count = c.batch * heads * c.time * row;
    const bool by_position = c.layout == Layout::kPositions;
    stride[0] = heads * c.time * row, stride[1] = by_position ? row : c.time * row;
    stride[2] = by_position ? heads * row : row, stride[3] = each;
  }
  int64_t at(int64_t b, int64_t head, int64_t time, int64_t i) const {
    return b * stride[0] + head * stride[1] + time * stride[2] + i * stride[3];
  }
  rotary::RotaryTensor of(Elements& x, Elements& y) const {
    rotary::RotaryTensor out{x.data(), y.data(), heads, {}, {}};
    std::copy(stride, stride + 4, out.x_stride);
    std::copy(stride, stride + 4, out.y_stride);
    return out;
  }
};

struct Rotation {
  Case c;
  DType type, table;
  bool half_table, interleaved, backward;
  Tensor q_of, k_of;
  int64_t width;
  Elements q, k, cos, sin;  // a cosine of every batch, sines that all share

  Rotation(const Case& c, DType type, DType table, bool half_table, bool interleaved, bool backward, std::mt19937& draw)
      : c(c),
        type(type),
        table(table),
        half_table(half_table),
        interleaved(interleaved),
        backward(backward),
        q_of(c, c.heads),
        k_of(c, c.kv_heads),
        width(half_table ? c.rotary_dim / 2 : c.rotary_dim),
        q(random(draw, type, q_of.count, c.shift)),
        k(random(draw, type, k_of.count, c.shift)),
        cos(random(draw, table, c.batch * c.time * width)),
        sin(random(draw, table, c.time * width)) {}

  void run(Elements& from_q, Elements& from_k, Elements& to_q, Elements& to_k) {
    rotary::cuda::rotate({.dtype = type,
                          .table_dtype = table,
                          .q = q_of.of(from_q, to_q),
                          .k = k_of.of(from_k, to_k),
                          .cos = cos.data(),
                          .sin = sin.data(),
                          .cos_stride = {c.time * width, width},
                          .sin_stride = {0, width},
                          .batch = c.batch,
                          .time = c.time,
                          .dim = c.dim,
                          .rotary_dim = c.rotary_dim,
                          .half_table = half_table,
                          .interleaved = interleaved,
                          .backward = backward},
                         nullptr);
    const bool vectors = c.whole && (table == type || table == DType::kFloat32);
    ASSERT_EQ(blockDim.x, vectors ? 128u : 256u) << "another kernel than the test is for";
  }

  // A product is rounded, then the sum of it and another; all are below 2: 2^-24 and 2^-23. Then y is rounded.
  void check(const Tensor& of, Elements& x, Elements& y) {
    const int64_t half = c.rotary_dim / 2;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t head = 0; head < of.heads; ++head) {
        for (int64_t time = 0; time < c.time; ++time) {
          const auto expect = [&](int64_t i, double value, double allowed) {
            ASSERT_NEAR(y.get(of.at(b, head, time, i)), value, allowed) << b << " " << head << " " << time << " " << i;
          };
          for (int64_t i = 0; i < half; ++i) {
            const int64_t one = interleaved ? 2 * i : i, two = interleaved ? one + 1 : i + half,
                          second = half_table || interleaved ? i : i + half;
            const double xa = x.get(of.at(b, head, time, one)), xb = x.get(of.at(b, head, time, two));
            const int64_t cos_at = (b * c.time + time) * width, sin_at = time * width;
            const double s1 = sin.get(sin_at + i), s2 = sin.get(sin_at + second);
            const double ya = xa * cos.get(cos_at + i) + xb * (backward ? s2 : -s1),
                         yb = xb * cos.get(cos_at + second) + xa * (backward ? -s1 : s2);
            expect(one, ya, rounding(type, ya) + 0x1p-22);
            expect(two, yb, rounding(type, yb) + 0x1p-22);
          }
          for (int64_t i = c.rotary_dim; i < c.dim; ++i) expect(i, x.get(of.at(b, head, time, i)), 0);
        }
      }
    }
    if (c.layout != Layout::kEverySecond) return;
    const Elements untouched(type, 1);
    for (int64_t i = 1; i < of.count; i += 2)
      ASSERT_EQ(std::memcmp(static_cast<char*>(y.data()) + i * kernels::size_of(type), untouched.bytes().data(), 2), 0);
  }

  void check() {
    expect_same_in_every_order(type, [&] {
      Elements to_q(type, q_of.count, c.shift), to_k(type, k_of.count, c.shift);
      run(q, k, to_q, to_k);
      check(q_of, q, to_q);
      check(k_of, k, to_k);
      Elements own_q = q, own_k = k;  // into themselves
      run(own_q, own_k, own_q, own_k);
      for (int64_t i = 0; i < q_of.count; i += q_of.stride[3]) EXPECT_EQ(own_q.get(i), to_q.get(i)) << i;
      for (int64_t i = 0; i < k_of.count; i += k_of.stride[3]) EXPECT_EQ(own_k.get(i), to_k.get(i)) << i;
      return std::pair(to_q.bytes(), to_k.bytes());
    });
  }
};

TEST(Emulated, Rotary) {
  std::mt19937 draw(15);
  for (const Case& c : kCases) {
    for (const DType type : kTypes) {
      for (const DType table : kTypes) {
        for (const int what : {0, 1, 2, 3, 4, 5, 6, 7}) {
          SCOPED_TRACE(testing::Message() << "dim " << c.dim << " rotary_dim " << c.rotary_dim << " time " << c.time
                                          << " type " << int(type) << " table " << int(table) << " form " << what);
          Rotation(c, type, table, (what & 1) != 0, (what & 2) != 0, (what & 4) != 0, draw).check();
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
