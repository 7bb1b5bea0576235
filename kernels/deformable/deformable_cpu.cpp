// Deformable attention on the CPU. Compiled once per ISA. Nothing is materialised: of each query and head a table says
// where the corners of its samples lie and how much each counts, and the channels go through it as vectors.
#include "kernels/deformable/numbers.h"

namespace deformable::HOTSWAP_ISA {

constexpr int kChunk = 64;  // samples in a table; more than models have

// ---- where samples lie

// Of each sample of a query and head its level, the same for all of them.
template <class S>
struct Levelled {
  S width[kChunk], height[kChunk];
  int32_t step[kChunk], rows[kChunk], start[kChunk];  // width and height in whole numbers
};
template <class S>
static void spread_levels(const Levels& levels, int64_t begin, int n, Levelled<S>& at) {
  int l = 0;
  for (int j = 0; j < n; ++j) {
    while (begin + j >= levels.first[l + 1]) ++l;
    const Level& level = levels.known[l];
    at.width[j] = S(level.width), at.height[j] = S(level.height);
    at.step[j] = int32_t(level.width), at.rows[j] = int32_t(level.height), at.start[j] = int32_t(level.start);
  }
}

enum Where : int32_t { kNowhere, kInside, kBorder };  // it gives nothing; all four corners lie inside; some of them

template <class S>
struct Samples {
  Levelled<S> level;
  int32_t x0[kChunk], y0[kChunk], row[kChunk], where[kChunk];  // row: of the corner at the upper left
  S fx[kChunk], fy[kChunk], a[kChunk];
  S weight[4][kChunk];  // a and the corner's share
};

// Samples [begin, begin + n) of a row of locations and weights. Plain loops without branches, for the compiler's
// vectors.
template <class S>
static void find(const Problem& p, int64_t index, int64_t begin, int n, Samples<S>& s) {
  S xy_buffer[2 * kChunk], a_buffer[kChunk];
  const int64_t at = index * p.samples + begin;
  const S* xy = read_numbers(p.locations, p.location_type, 2 * at, 2 * n, xy_buffer);
  const S* a = read_numbers(p.weights, p.weight_type, at, n, a_buffer);
  if (p.samples > kChunk) spread_levels(p.levels, begin, n, s.level);  // else done once for all rows
  for (int j = 0; j < n; ++j) {
    const S width = s.level.width[j], height = s.level.height[j];
    const S px = xy[2 * j] * width - S(0.5), py = xy[2 * j + 1] * height - S(0.5);
    // NaN is in none of them, and no number beyond int32 is converted.
    const bool in = (px > S(-1)) & (px < width) & (py > S(-1)) & (py < height);
    const S x = in ? px : S(0), y = in ? py : S(0);
    const int32_t x0 = int32_t(x) - (x < S(0)), y0 = int32_t(y) - (y < S(0));  // floor
    const bool inside = (x0 >= 0) & (y0 >= 0) & (x0 + 1 < s.level.step[j]) & (y0 + 1 < s.level.rows[j]);
    s.x0[j] = x0, s.y0[j] = y0;
    s.row[j] = s.level.start[j] + y0 * s.level.step[j] + x0;
    s.where[j] = in ? (inside ? kInside : kBorder) : kNowhere;
    const S fx = x - S(x0), fy = y - S(y0), top = a[j] * (S(1) - fy), bottom = a[j] * fy;
    s.fx[j] = fx, s.fy[j] = fy, s.a[j] = a[j];
    s.weight[0][j] = top * (S(1) - fx), s.weight[1][j] = top * fx;
    s.weight[2][j] = bottom * (S(1) - fx), s.weight[3][j] = bottom * fx;
  }
}
template <class S>
HOTSWAP_INLINE bool corner_inside(const Samples<S>& s, int j, int k) {
  const int32_t x = s.x0[j] + k % 2, y = s.y0[j] + k / 2;
  return x >= 0 && y >= 0 && x < s.level.step[j] && y < s.level.rows[j];
}
template <class S>
HOTSWAP_INLINE int64_t corner_row(const Samples<S>& s, int j, int k) {
  return int64_t{s.row[j]} + k / 2 * int64_t{s.level.step[j]} + k % 2;
}

// Row r of batch x heads x queries: an image's and head's queries follow each other, so that its values stay in cache.
struct Row {
  int64_t n, m, q, index;  // index: in batch x queries x heads
};
HOTSWAP_INLINE Row row_of(const Problem& p, int64_t r) {
  const int64_t q = r % p.queries, m = r / p.queries % p.heads, n = r / p.queries / p.heads;
  return {n, m, q, (n * p.queries + q) * p.heads + m};
}

// An image's and head's part of value: where it lies, or copied together.
template <class T>
struct Plane {
  const T* data;
  int64_t stride;  // between rows
};
template <class T>
HOTSWAP_INLINE Plane<T> plane_of(const Problem& p, const Row& row, T* copy, int64_t* held) {
  const T* data = static_cast<const T*>(p.value) + row.n * p.batch_stride + row.m * p.head_stride;
  if (copy == nullptr) return {data, p.row_stride};
  const int64_t wanted = row.n * p.heads + row.m;
  if (*held != wanted) {
    for (int64_t r = 0; r < p.rows; ++r)
      __builtin_memcpy(copy + r * p.channels, data + r * p.row_stride, sizeof(T) * size_t(p.channels));
    *held = wanted;
  }
  return {copy, p.channels};
}

// ---- forward

// What the samples give to N vectors of channels, the last of them `count` numbers wide.
template <class T, int N, class Count>
HOTSWAP_INLINE void add_samples(const T* value, int64_t stride, const Samples<typename Wide<T>::S>& s, int n,
                                Count count, typename Wide<T>::V (&sums)[N]) {
  using V = typename Wide<T>::V;
  for (int j = 0; j < n; ++j) {
    if (s.where[j] == kInside) {
      const T* top = value + s.row[j] * stride;
      const T* bottom = top + s.level.step[j] * stride;
      const V w0 = V{} + s.weight[0][j], w1 = V{} + s.weight[1][j], w2 = V{} + s.weight[2][j],
              w3 = V{} + s.weight[3][j];
      for (int i = 0; i < N; ++i) {
        const int64_t c = i * kVector<T>;
        V v = w0 * load(top + c, count);  // apart from the sum, so that samples do not wait for each other
        v += w1 * load(top + stride + c, count);
        v += w2 * load(bottom + c, count);
        v += w3 * load(bottom + stride + c, count);
        sums[i] += v;
      }
    } else if (s.where[j] == kBorder) {
      for (int k = 0; k < 4; ++k) {
        if (!corner_inside(s, j, k)) continue;
        const T* from = value + corner_row(s, j, k) * stride;
        const V weight = V{} + s.weight[k][j];
        for (int i = 0; i < N; ++i) sums[i] += weight * load(from + i * kVector<T>, count);
      }
    }
  }
}

template <class T>
static void forward_row(const Forward& a, const Row& row, const Plane<T>& value, Samples<typename Wide<T>::S>& s) {
  using V = typename Wide<T>::V;
  const Problem& p = a.of;
  T* out = static_cast<T*>(a.out) + row.index * p.channels;
  const bool one_table = p.samples <= kChunk;
  if (one_table) find(p, row.index, 0, int(p.samples), s);
  const auto block = [&]<int N, class Count>(int64_t c, Count count) HOTSWAP_LAMBDA {
    V sums[N] = {};
    for (int64_t begin = 0; begin < p.samples; begin += kChunk) {
      const int n = int(p.samples - begin < kChunk ? p.samples - begin : kChunk);
      if (!one_table) find(p, row.index, begin, n, s);
      add_samples<T, N>(value.data + c, value.stride, s, n, count, sums);
    }
    for (int i = 0; i < N; ++i) store(out + c + i * kVector<T>, sums[i], count);
  };
  constexpr int kStep = kVector<T>;
  int64_t c = 0;
  for (; c + 4 * kStep <= p.channels; c += 4 * kStep) block.template operator()<4>(c, All{});
  for (; c + 2 * kStep <= p.channels; c += 2 * kStep) block.template operator()<2>(c, All{});
  for (; c + kStep <= p.channels; c += kStep) block.template operator()<1>(c, All{});
  if (c < p.channels) block.template operator()<1>(c, Part{int(p.channels - c)});
}

// Fn<T>(samples), their levels filled in where one table holds them all.
template <class Fn>
HOTSWAP_INLINE void with_samples(const Problem& p, Fn fn) {
  with_number(p.value_type, [&]<typename T>() {
    Samples<typename Wide<T>::S> s;
    if (p.samples <= kChunk) spread_levels(p.levels, 0, int(p.samples), s.level);
    fn.template operator()<T>(s);
  });
}

static void forward(const Forward& a, void* copy, int64_t begin, int64_t end) {
  int64_t held = -1;
  with_samples(a.of, [&]<typename T>(auto& s) {
    for (int64_t r = begin; r < end; ++r) {
      const Row row = row_of(a.of, r);
      forward_row<T>(a, row, plane_of(a.of, row, static_cast<T*>(copy), &held), s);
    }
  });
}

// ---- backward: gradients of locations and weights

template <class T>
static void backward_samples_row(const Backward& a, const Row& row, const Plane<T>& value,
                                 Samples<typename Wide<T>::S>& s) {
  using S = typename Wide<T>::S;
  using V = typename Wide<T>::V;
  const Problem& p = a.of;
  const T* dout = static_cast<const T*>(a.dout) + row.index * p.channels;
  S dots[4][kChunk], dxy[2 * kChunk], da[kChunk];
  for (int64_t begin = 0; begin < p.samples; begin += kChunk) {
    const int n = int(p.samples - begin < kChunk ? p.samples - begin : kChunk);
    find(p, row.index, begin, n, s);
    for (int j = 0; j < n; ++j) {
      for (int k = 0; k < 4; ++k) dots[k][j] = S(0);
      if (s.where[j] == kNowhere) continue;
      // A corner outside is read at one inside, and counts 0: no branch in the loop over channels.
      const T* v[4];
      const int32_t last_x = s.level.step[j] - 1, last_y = s.level.rows[j] - 1;
      const int32_t x[2] = {s.x0[j] < 0 ? 0 : s.x0[j], s.x0[j] < last_x ? s.x0[j] + 1 : last_x};
      const int32_t y[2] = {s.y0[j] < 0 ? 0 : s.y0[j], s.y0[j] < last_y ? s.y0[j] + 1 : last_y};
      for (int k = 0; k < 4; ++k) {
        v[k] = value.data + (s.level.start[j] + int64_t{y[k / 2]} * s.level.step[j] + x[k % 2]) * value.stride;
      }
      V sums[4] = {};
      vectors<T>(p.channels, [&](int64_t c, auto count) HOTSWAP_LAMBDA {
        const V g = load(dout + c, count);
        for (int k = 0; k < 4; ++k) sums[k] += g * load(v[k] + c, count);
      });
      S each[4];
      sum_each(sums, each);
      for (int k = 0; k < 4; ++k) {
        if (s.where[j] == kInside || corner_inside(s, j, k)) dots[k][j] = each[k];
      }
    }
    for (int j = 0; j < n; ++j) {
      const S fx = s.fx[j], fy = s.fy[j], gx = S(1) - fx, gy = S(1) - fy;
      const S s0 = dots[0][j], s1 = dots[1][j], s2 = dots[2][j], s3 = dots[3][j];
      const S weight = s.where[j] == kNowhere ? S(0) : s.a[j];  // where it is infinite, too
      da[j] = gy * (gx * s0 + fx * s1) + fy * (gx * s2 + fx * s3);
      dxy[2 * j] = s.level.width[j] * weight * (gy * (s1 - s0) + fy * (s3 - s2));
      dxy[2 * j + 1] = s.level.height[j] * weight * (gx * (s2 - s0) + fx * (s3 - s1));
    }
    const int64_t at = row.index * p.samples + begin;
    write_numbers(a.dlocations, p.location_type, 2 * at, 2 * n, dxy);
    write_numbers(a.dweights, p.weight_type, at, n, da);
  }
}

static void backward_samples(const Backward& a, void* copy, int64_t begin, int64_t end) {
  int64_t held = -1;
  with_samples(a.of, [&]<typename T>(auto& s) {
    for (int64_t r = begin; r < end; ++r) {
      const Row row = row_of(a.of, r);
      backward_samples_row<T>(a, row, plane_of(a.of, row, static_cast<T*>(copy), &held), s);
    }
  });
}

// ---- backward: the gradient of value

// What a query's gradient adds to corners' rows of `width` channels; where that is all of a plane, from registers.
template <class T, class S>
HOTSWAP_INLINE void add_rows(S* scratch, const Samples<S>& s, int n, const S* g, int64_t width) {
  using V = typename Wide<T>::V;
  constexpr int kStep = kVector<T>, kWhole = int(kPlaneChannels) / kStep;
  V held[kWhole] = {};
  const bool whole = width == kPlaneChannels;
  for (int i = 0; i < kWhole && whole; ++i) held[i] = load(g + i * kStep, All{});
  for (int j = 0; j < n; ++j) {
    if (s.where[j] == kNowhere) continue;
    for (int k = 0; k < 4; ++k) {
      if (s.where[j] != kInside && !corner_inside(s, j, k)) continue;
      S* to = scratch + corner_row(s, j, k) * kPlaneChannels;
      const V weight = V{} + s.weight[k][j];
      if (whole) {
        for (int i = 0; i < kWhole; ++i) store(to + i * kStep, load(to + i * kStep, All{}) + weight * held[i], All{});
      } else {
        vectors<T>(width, [&](int64_t c, auto count) HOTSWAP_LAMBDA {
          store(to + c, load(to + c, count) + weight * load(g + c, count), count);
        });
      }
    }
  }
}

template <class T>
static void backward_plane(const Backward& a, typename Wide<T>::S* scratch, int64_t plane,
                           Samples<typename Wide<T>::S>& s) {
  using S = typename Wide<T>::S;
  const Problem& p = a.of;
  const int64_t parts = (p.channels + kPlaneChannels - 1) / kPlaneChannels;
  const int64_t first = plane % parts * kPlaneChannels, m = plane / parts % p.heads, n = plane / parts / p.heads;
  const int64_t width = p.channels - first < kPlaneChannels ? p.channels - first : kPlaneChannels;
  __builtin_memset(scratch, 0, sizeof(S) * size_t(p.rows * kPlaneChannels));
  for (int64_t q = 0; q < p.queries; ++q) {
    const int64_t index = (n * p.queries + q) * p.heads + m;
    S buffer[kPlaneChannels];
    const S* g =
        read_numbers<S>(static_cast<const T*>(a.dout), p.value_type, index * p.channels + first, width, buffer);
    for (int64_t begin = 0; begin < p.samples; begin += kChunk) {
      const int count = int(p.samples - begin < kChunk ? p.samples - begin : kChunk);
      find(p, index, begin, count, s);
      add_rows<T>(scratch, s, count, g, width);
    }
  }
  T* dvalue = static_cast<T*>(a.dvalue) + (n * p.rows * p.heads + m) * p.channels + first;
  for (int64_t r = 0; r < p.rows; ++r) {
    const S* from = scratch + r * kPlaneChannels;
    T* to = dvalue + r * p.heads * p.channels;
    vectors<T>(width, [&](int64_t c, auto count) HOTSWAP_LAMBDA { store(to + c, load(from + c, count), count); });
  }
}

static void backward_value(const Backward& a, void* scratch, int64_t begin, int64_t end) {
  with_samples(a.of, [&]<typename T>(auto& s) {
    for (int64_t plane = begin; plane < end; ++plane)
      backward_plane<T>(a, static_cast<typename Wide<T>::S*>(scratch), plane, s);
  });
}

const Table kTable = {.forward = forward, .backward_samples = backward_samples, .backward_value = backward_value};

}  // namespace deformable::HOTSWAP_ISA
