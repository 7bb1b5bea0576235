// What forward and backward of ssd.h do alike with a chunk. Rows of tiles are tokens; those behind the last one, of
// padding and of columns behind the last number are 0, so that no sum asks. Compiled once per ISA.
#pragma once

#include "kernels/common/cpu/gemm.h"
#include "kernels/common/cpu/transpose.h"
#include "kernels/mamba/cpu/gate.h"
#include "kernels/mamba/ssd.h"

namespace mamba::ssd::HOTSWAP_ISA {

using namespace mamba::HOTSWAP_ISA;

void backward(const Backward& a, float* scratch, int64_t begin, int64_t end);
void sum_parts(const Backward& a, int64_t begin, int64_t end);

constexpr int64_t kStrip = 16;  // rows of a triangle that are multiplied at once: whole vectors of any width

HOTSWAP_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
HOTSWAP_INLINE int64_t strip_end(int64_t row) { return row / kStrip * kStrip + kStrip; }

// Cuts a thread's scratch into arrays.
struct Scratch {
  float* next;
  float* take(int64_t count) {
    float* taken = next;
    next += count;
    return taken;
  }
};

// ---- tokens

// Which tokens of a chunk count, and where the sequence of each began.
struct Rows {
  int64_t batch, first;  // of the chunk's first token
  int count;             // tokens; the rest of a last chunk is as padding
  bool padding[kChunk];
  int32_t start[kChunk];  // the sequence's first row; -1: it has entered from the chunk before
  int32_t last_start;     // of the sequence that leaves

  bool enters(int i) const { return start[i] < 0; }
};

static Rows rows_of(const Problem& p, int64_t batch, int64_t chunk) {
  Rows r{.batch = batch, .first = chunk * kChunk, .count = 0, .padding = {}, .start = {}, .last_start = -1};
  r.count = int(least(kChunk, p.length - r.first));
  const auto id_of = [&](int64_t t) { return p.sequence.data == nullptr ? 0 : sequence_of(p.sequence, batch, t); };
  int32_t current = -1;
  for (int64_t t = r.first - 1; t >= 0 && current < 0; --t) current = id_of(t);
  for (int i = 0; i < kChunk; ++i) {
    const int32_t id = i >= r.count ? -1 : id_of(r.first + i);
    r.padding[i] = id < 0;
    if (id >= 0 && current >= 0 && id != current) r.last_start = i;
    if (id >= 0) current = id;
    r.start[i] = r.last_start;
  }
  return r;
}

template <class T>
HOTSWAP_INLINE T* at(const Tokens& t, const Rows& r, int64_t row, int64_t head) {
  return static_cast<T*>(t.data) + r.batch * t.batch + (r.first + row) * t.step + head * t.head;
}

HOTSWAP_INLINE void zero(float* to, int64_t count) { __builtin_memset(to, 0, sizeof(float) * size_t(count)); }

// to[row][padded(count)] of a head's or group's tokens.
template <class T>
static void load_rows(float* to, const Tokens& t, const Rows& r, int64_t head, int64_t count) {
  const int64_t width = padded(count), whole = (count + kLanes - 1) / kLanes * kLanes;
  for (int i = 0; i < kChunk; ++i, to += width) {
    if (r.padding[i]) {
      zero(to, width);
      continue;
    }
    const T* from = at<const T>(t, r, i, head);
    sweep(count, [&](int64_t n, auto part) HOTSWAP_LAMBDA { store(to + n, load(from + n, part)); });
    zero(to + whole, width - whole);
  }
}

template <class T>
static void store_row(T* to, const float* from, int64_t count) {
  sweep(count, [&](int64_t n, auto part) HOTSWAP_LAMBDA { store(to + n, load(from + n, part), part); });
}

// to[column][row] = from[row][column]
static void transpose_to(float* to, int64_t to_row, const float* from, int64_t from_row, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    const int high = int(least(kLanes, rows - r));
    for (int64_t c = 0; c < cols; c += kLanes) {
      const int wide = int(least(kLanes, cols - c));
      F square[kLanes] = {};
      if (high == kLanes && wide == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) square[i] = load(from + (r + i) * from_row + c);
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(to + (c + i) * to_row + r, square[i]);
        continue;
      }
      for (int i = 0; i < high; ++i) square[i] = load(from + (r + i) * from_row + c, Part{wide});
      transpose(square);
      for (int i = 0; i < wide; ++i) store(to + (c + i) * to_row + r, square[i], Part{high});
    }
  }
}

// A state between [dim, state] outside and [state, padded(dim)] here.
static void load_state(float* to, const float* from, const Problem& p) {
  zero(to, p.state * padded(p.dim));
  if (from != nullptr) transpose_to(to, padded(p.dim), from, p.state, p.dim, p.state);
}
static void store_state(float* to, const float* from, const Problem& p) {
  transpose_to(to, p.state, from, padded(p.dim), p.state, p.dim);
}

// ---- steps and decays of a head

struct Steps {
  float delta[kChunk];              // 0 for padding
  float slope[kChunk];              // of delta by dt
  float sum[kChunk], rest[kChunk];  // S in two parts
  float enter[kChunk], leave[kChunk], keep;
};

static void steps_of(Steps& s, const Problem& p, const Rows& r, int64_t head) {
  const float bias = p.dt_bias == nullptr ? 0.f : p.dt_bias[head], rate = p.A[head];
  with_dtype(p.dt_type, [&]<typename T>() {
    for (int i = 0; i < kChunk; ++i) s.delta[i] = r.padding[i] ? 0.f : to_float(*at<const T>(p.dt, r, i, head)) + bias;
  });
  sweep(kChunk, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F x = load(s.delta + i, count);
    const F d = p.softplus ? softplus(x) : x, one = F{} + 1.f;
    const F slope = p.softplus ? select((I)(x > F{} + 20.f), one, sigmoid(x)) : one;
    store(s.slope + i, select((I)(d < F{} + p.dt_min) | (I)(d > F{} + p.dt_max), F{}, slope), count);
    store(s.delta + i, clamp(d, p.dt_min, p.dt_max), count);
  });
  double sum = 0;
  for (int i = 0; i < kChunk; ++i) {
    if (r.padding[i]) s.delta[i] = s.slope[i] = 0.f;
    sum += double(s.delta[i]) * double(rate);
    s.sum[i] = float(sum);
    s.rest[i] = float(sum - double(s.sum[i]));
  }
  const float last = s.sum[kChunk - 1], last_rest = s.rest[kChunk - 1];
  sweep(kChunk, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F sums = load(s.sum + i, count), rests = load(s.rest + i, count);
    store(s.enter + i, exp(sums + rests), count);
    store(s.leave + i, exp((last - sums) + (last_rest - rests)), count);
  });
  s.keep = r.last_start < 0 ? s.enter[kChunk - 1] : 0.f;
  for (int i = 0; i < kChunk; ++i) {
    if (!r.enters(i)) s.enter[i] = 0.f;
    if (i < r.last_start) s.leave[i] = 0.f;
  }
}

// Row i of T, 0 above the diagonal, up to the end of its strip.
HOTSWAP_INLINE void decays(const Steps& s, const Rows& r, int64_t i, auto use) {
  I lane;
  for (int l = 0; l < kLanes; ++l) lane[l] = l;
  const float sum = s.sum[i], rest = s.rest[i];
  const I last = I{} + int32_t(i), first = I{} + r.start[i];
  for (int64_t j = 0; j < strip_end(i); j += kLanes) {
    const I column = lane + int32_t(j);
    const F decay = exp((sum - load(s.sum + j)) + (rest - load(s.rest + j)));
    use(j, select((column <= last) & (column >= first), decay, F{}));
  }
}

// ---- triangles: c[i][j] of j <= i, [kChunk, kChunk], whole strips

// c_ij = a_i . b_j over `numbers`; b transposed.
HOTSWAP_INLINE void dots(float* c, const float* a, int64_t a_row, const float* b_columns, int count, int64_t numbers) {
  for (int64_t i = 0; i < count; i += kStrip) {
    multiply<Into::kSet>(c + i * kChunk, kChunk, {a + i * a_row, a_row, 1}, {b_columns, kChunk},
                         least(kStrip, count - i), i + kStrip, numbers);
  }
}

// to_i = scale_i to_i + sum over j <= i of c_ij b_j
HOTSWAP_INLINE void add_before(float* to, const float* c, const float* b, int64_t width, int count,
                               const float* scale) {
  for (int64_t i = 0; i < count; i += kStrip) {
    multiply<Into::kScaled>(to + i * width, width, {c + i * kChunk, kChunk, 1}, {b, width}, least(kStrip, count - i),
                            width, least(i + kStrip, count), scale + i);
  }
}

// to_j = scale_j to_j + sum over i >= j of c_ij b_i
HOTSWAP_INLINE void add_after(float* to, const float* c, const float* b, int64_t width, int count, const float* scale) {
  for (int64_t j = 0; j < count; j += kStrip) {
    multiply<Into::kScaled>(to + j * width, width, {c + j * kChunk + j, 1, kChunk}, {b + j * width, width},
                            least(kStrip, count - j), width, count - j, scale + j);
  }
}

// A block of heads of one group and batch entry.
struct Item {
  int64_t batch, group, block, head, heads;  // head: the first one
};
HOTSWAP_INLINE Item item_of(const Problem& p, int64_t i) {
  const int64_t block = i % p.blocks(), group = i / p.blocks() % p.groups, batch = i / p.blocks() / p.groups;
  const int64_t per_group = p.heads / p.groups;
  return {batch, group, block, group * per_group + block * kHeads, least(kHeads, per_group - block * kHeads)};
}

}  // namespace mamba::ssd::HOTSWAP_ISA
