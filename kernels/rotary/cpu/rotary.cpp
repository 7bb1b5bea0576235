// Rotary embedding on the CPU. Compiled once per ISA.
#include "kernels/rotary/rotary.h"

#include "kernels/common/cpu/nontemporal.h"

namespace rotary::HOTSWAP_ISA {
using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

// Elements whose tables stand in the scratch at once: 2 tables x 8 positions x 256 x 4 bytes = 16 KiB, half an L1.
constexpr int64_t kTile = 256;

// What one position does to its elements: y[a] = x[a] c[a] + x[b] s[a] and y[b] = x[b] c[b] + x[a] s[b]. The signs are
// in s. The order is that of x: the a's of a tile before its b's (half), or a, b, a, b (interleaved).
struct Tables {
  float c[kTile], s[kTile];
};

// Pairs [first, first + pairs) of one position.
template <class C>
static void fill(Tables& t, const RotaryArgs& a, const C* cos, const C* sin, int64_t first, int64_t pairs) {
  // Where the b's tables begin: in the second half, or with the a's where one entry serves both.
  const int64_t second = first + (a.half_table || a.interleaved ? 0 : a.rotary_dim / 2);
  const int64_t step = a.interleaved ? 2 : 1, far = a.interleaved ? 1 : pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float s1 = to_float(sin[first + i]), s2 = to_float(sin[second + i]);
    t.c[i * step] = to_float(cos[first + i]);
    t.c[i * step + far] = to_float(cos[second + i]);
    t.s[i * step] = a.backward ? s2 : -s1;
    t.s[i * step + far] = a.backward ? -s1 : s2;
  }
}

HOTSWAP_INLINE F swap_pairs(F v) {
  typedef uint64_t Wide __attribute__((vector_size(kVecBytes)));
  const Wide w = (Wide)v;
  return (F)((w << 32) | (w >> 32));
}

// x may be y: what a step reads is what it writes.
template <bool kStream, class T>
HOTSWAP_INLINE void rotate_half(T* y, const T* x, int64_t far, const Tables& t, int64_t pairs) {
  sweep(pairs, [&](int64_t i, auto n) HOTSWAP_LAMBDA {
    const F xa = load(x + i, n), xb = load(x + far + i, n);
    const F ya = xa * load(t.c + i, n) + xb * load(t.s + i, n);
    const F yb = xb * load(t.c + pairs + i, n) + xa * load(t.s + pairs + i, n);
    write<kStream>(y + i, ya, n);
    write<kStream>(y + far + i, yb, n);
  });
}
template <bool kStream, class T>
HOTSWAP_INLINE void rotate_interleaved(T* y, const T* x, const Tables& t, int64_t pairs) {
  sweep(2 * pairs, [&](int64_t i, auto n) HOTSWAP_LAMBDA {
    const F v = load(x + i, n);
    write<kStream>(y + i, v * load(t.c + i, n) + swap_pairs(v) * load(t.s + i, n), n);
  });
}
// Last dimensions that are not contiguous: correct, not fast.
template <class T>
static void rotate_strided(T* y, const T* x, int64_t y_unit, int64_t x_unit, int64_t step, int64_t far,
                           int64_t table_far, const Tables& t, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t a = i * step, b = a + far, tb = a + table_far;
    const float xa = to_float(x[a * x_unit]), xb = to_float(x[b * x_unit]);
    y[a * y_unit] = from_float<T>(xa * t.c[a] + xb * t.s[a]);
    y[b * y_unit] = from_float<T>(xb * t.c[tb] + xa * t.s[tb]);
  }
}

// One head at one position: pairs [first, first + pairs), and with the last of them the elements that pass through.
template <bool kStream, class T>
HOTSWAP_INLINE void rotate_head(const RotaryArgs& a, T* y, const T* x, int64_t y_unit, int64_t x_unit, const Tables& t,
                                int64_t first, int64_t pairs) {
  const int64_t half = a.rotary_dim / 2;
  if (y_unit != 1 || x_unit != 1) {
    const int64_t step = a.interleaved ? 2 : 1, at = first * step;
    rotate_strided(y + at * y_unit, x + at * x_unit, y_unit, x_unit, step, a.interleaved ? 1 : half,
                   a.interleaved ? 1 : pairs, t, pairs);
  } else if (a.interleaved) {
    rotate_interleaved<kStream>(y + 2 * first, x + 2 * first, t, pairs);
  } else {
    rotate_half<kStream>(y + first, x + first, half, t, pairs);
  }
  if (x == y || first + pairs < half) return;
  for (int64_t i = a.rotary_dim; i < a.dim; ++i) y[i * y_unit] = x[i * x_unit];
}

// Positions [begin, end) of one batch row, in the order in which x lies in memory.
template <bool kStream, class T>
static void rotate_block(const RotaryArgs& a, const RotaryTensor& r, const Tables* tables, int64_t b, int64_t begin,
                         int64_t end, int64_t first, int64_t pairs) {
  const T* x = static_cast<const T*>(r.x) + b * r.x_stride[0] + begin * r.x_stride[2];
  T* y = static_cast<T*>(r.y) + b * r.y_stride[0] + begin * r.y_stride[2];
  const int64_t times = end - begin;
  const bool time_first = r.x_stride[2] >= r.x_stride[1];
  const int64_t outer = time_first ? times : r.heads, inner = time_first ? r.heads : times;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      const int64_t time = time_first ? o : i, head = time_first ? i : o;
      rotate_head<kStream>(a, y + head * r.y_stride[1] + time * r.y_stride[2],
                           x + head * r.x_stride[1] + time * r.x_stride[2], r.y_stride[3], r.x_stride[3], tables[time],
                           first, pairs);
    }
  }
}

template <bool kStream, class T, class C>
static void rotate_typed(const RotaryArgs& a, int64_t begin, int64_t end) {
  const int64_t per_batch = (a.time + kRotaryBlock - 1) / kRotaryBlock, half = a.rotary_dim / 2;
  Tables tables[kRotaryBlock];
  for (int64_t block = begin; block < end; ++block) {
    const int64_t b = block / per_batch, from = block % per_batch * kRotaryBlock;
    const int64_t to = from + kRotaryBlock < a.time ? from + kRotaryBlock : a.time;
    for (int64_t first = 0; first < half; first += kTile / 2) {
      const int64_t pairs = half - first < kTile / 2 ? half - first : kTile / 2;
      for (int64_t s = from; s < to; ++s) {
        fill(tables[s - from], a, static_cast<const C*>(a.cos) + b * a.cos_stride[0] + s * a.cos_stride[1],
             static_cast<const C*>(a.sin) + b * a.sin_stride[0] + s * a.sin_stride[1], first, pairs);
      }
      rotate_block<kStream, T>(a, a.q, tables, b, from, to, first, pairs);
      rotate_block<kStream, T>(a, a.k, tables, b, from, to, first, pairs);
    }
  }
  if (kStream) stream_fence();
}

// Streaming wants every head's vector, and its second half, at a whole number of vectors.
template <class T>
static bool streams(const RotaryArgs& a) {
  const auto aligned = [](const RotaryTensor& r) {
    return r.x != r.y && can_stream(static_cast<T*>(r.y)) && r.y_stride[0] % kLanes == 0 &&
           r.y_stride[1] % kLanes == 0 && r.y_stride[2] % kLanes == 0 && r.y_stride[3] == 1;
  };
  return (a.interleaved || a.rotary_dim / 2 % kLanes == 0) && aligned(a.q) && aligned(a.k) &&
         wants_stream(a.batch * a.time * (a.q.heads + a.k.heads) * a.dim * int64_t{sizeof(T)});
}

static void rotate(const RotaryArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    with_dtype(a.table_dtype, [&]<typename C>() {
      streams<T>(a) ? rotate_typed<true, T, C>(a, begin, end) : rotate_typed<false, T, C>(a, begin, end);
    });
  });
}

const Table kTable = {rotate};

}  // namespace rotary::HOTSWAP_ISA
