// Multi-scale deformable attention: every query takes a few samples out of every level of a feature pyramid, at places
// that it says itself, and sums them by weights.
//
//   A sample at (x, y) of a level, [0, 1] from its first to its last edge:  px = x W - 1/2,  py = y H - 1/2
//   x0 = floor(px), fx = px - x0, and so y0, fy;  v_ij the value at (y0 + i, x0 + j), 0 outside of the level
//   v    = (1-fy)(1-fx) v_00 + (1-fy) fx v_01 + fy (1-fx) v_10 + fy fx v_11
//   out  = sum over samples of a v,   a the sample's weight
//
// Backward, with g the gradient of out and s_ij = sum over channels of g v_ij:
//   da = (1-fy)(1-fx) s_00 + (1-fy) fx s_01 + fy (1-fx) s_10 + fy fx s_11
//   dx = W a ((1-fy)(s_01 - s_00) + fy (s_11 - s_10)),   dy = H a ((1-fx)(s_10 - s_00) + fx (s_11 - s_01))
//   dv_ij += a * (the factor of v_ij above) * g
//
// A sample counts where -1 < px < W and -1 < py < H: one outside, infinite or NaN gives nothing and has no gradient.
//
// Casting: value, locations and weights may each have a type of their own. Places, weights and sums are float32, with
// float64 (all three then) float64; each result is rounded once, out to value's type, a gradient to its input's.
// Order of sums: the samples' own, whatever the number of threads.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace deformable {

enum class Number : uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64 };

template <class Fn>
static inline void with_number(Number type, Fn fn) {
  switch (type) {
    case Number::kFloat32:
      return fn.template operator()<float>();
    case Number::kBFloat16:
      return fn.template operator()<kernels::BFloat16>();
    case Number::kFloat16:
      return fn.template operator()<kernels::Half>();
    case Number::kFloat64:
      return fn.template operator()<double>();
  }
}

constexpr int kMaxLevels = 16;

struct Level {
  int64_t height, width, start;  // its pixel (y, x) is row start + y width + x of value
};

// The pyramid: sizes in `known`, or on the GPU, where nobody waits for them: shapes [count, 2] (height, width) and
// starts [count].
struct Levels {
  int32_t count;
  int32_t first[kMaxLevels + 1];  // the first of each level's samples; [count]: of all levels together
  Level known[kMaxLevels];
  const void *shapes, *starts;    // null: known
  bool wide_shapes, wide_starts;  // 64 bits each, or 32
};

struct Problem {
  int64_t batch, rows, heads, channels, queries;
  Number value_type, location_type, weight_type;
  const void* value;                              // [batch, rows, heads, channels], channels contiguous
  int64_t batch_stride, row_stride, head_stride;  // of value, in numbers
  const void* locations;                          // [batch, queries, heads, samples, 2]: x, y
  const void* weights;                            // [batch, queries, heads, samples]
  Levels levels;
  int64_t samples;  // of a query and head, on all levels
};

struct Forward {
  Problem of;
  void* out;  // [batch, queries, heads, channels]
};

struct Backward {
  Problem of;
  const void* dout;             // [batch, queries, heads, channels], in value's type
  void *dlocations, *dweights;  // as locations and weights
  void* dvalue;                 // [batch, rows, heads, channels]
};

// dvalue on the CPU: planes of so many channels of one image and head, each summed by one thread in `scratch`.
constexpr int64_t kPlaneChannels = 32;
HOTSWAP_INLINE int64_t planes_of(const Problem& p) {
  return p.batch * p.heads * ((p.channels + kPlaneChannels - 1) / kPlaneChannels);
}

// Many queries read a head's part of value where it lies together: rows of all heads are apart by a power of two, and
// share few lines of a cache. Fewer than this are read once a row and are not worth the copy.
HOTSWAP_INLINE bool wants_copy(const Problem& p) { return p.queries * p.samples >= 2 * p.rows; }
// Rows of `channels` in value's type that a thread of forward and backward_samples needs: that copy, and one of zeros.
HOTSWAP_INLINE int64_t room_rows(const Problem& p) { return wants_copy(p) ? p.rows + 1 : 1; }

// forward and backward_samples (dlocations, dweights) work on rows [begin, end) of the batch x heads x queries there
// are, backward_value on planes. room: see room_rows. scratch: rows + 1 times kPlaneChannels float32, float64 with
// float64; the last row takes what falls outside.
struct Table {
  void (*forward)(const Forward&, void* room, int64_t begin, int64_t end);
  void (*backward_samples)(const Backward&, void* room, int64_t begin, int64_t end);
  void (*backward_value)(const Backward&, void* scratch, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace deformable
