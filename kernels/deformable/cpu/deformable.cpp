// Deformable attention on the CPU. Compiled once per ISA. Nothing is materialised: of each query and head a table says
// where the corners of its samples lie and how much each counts (samples.h), and the channels go through it as vectors.
#include "kernels/deformable/cpu/samples.h"

namespace deformable::HOTSWAP_ISA {

// ---- the walk over rows

// Row r of batch x heads x queries.
struct Row {
  int64_t n, m, index;  // index: in batch x queries x heads
};
// An image's and head's queries follow each other where value of that head is copied together, so that it stays in
// cache; else rows lie in the order of the results.
HOTSWAP_INLINE Row row_of(const Problem& p, int64_t r, bool copied) {
  if (!copied) return {r / p.heads / p.queries, r % p.heads, r};
  const int64_t q = r % p.queries, m = r / p.queries % p.heads, n = r / p.queries / p.heads;
  return {n, m, (n * p.queries + q) * p.heads + m};
}

// An image's and head's part of value: where it lies, or copied together; and a row of zeros.
template <class T>
struct Plane {
  const T* data;
  int64_t stride;  // between rows
  const T* zeros;
};
template <class T>
HOTSWAP_INLINE void copy_plane(const Problem& p, const T* data, T* to) {
  constexpr int kPart = kVecBytes / sizeof(T);
  for (int64_t r = 0; r < p.rows; ++r, data += p.row_stride, to += p.channels) {
    int64_t c = 0;
    for (; c + kPart <= p.channels; c += kPart) __builtin_memcpy(to + c, data + c, kVecBytes);
    for (; c < p.channels; ++c) to[c] = data[c];
  }
}

// fn(row, plane) for rows [begin, end). room: see Table.
template <class T, class Fn>
HOTSWAP_INLINE void each_row(const Problem& p, void* room, int64_t begin, int64_t end, Fn fn) {
  const bool copied = wants_copy(p);
  T* copy = static_cast<T*>(room);
  T* zeros = copied ? copy + p.rows * p.channels : copy;
  for (int64_t c = 0; c < p.channels; ++c) zeros[c] = T{};  // with no channels there is no room
  int64_t held = -1;
  for (int64_t r = begin; r < end; ++r) {
    const Row row = row_of(p, r, copied);
    const T* data = static_cast<const T*>(p.value) + row.n * p.batch_stride + row.m * p.head_stride;
    if (const int64_t plane = row.n * p.heads + row.m; copied && held != plane) {
      copy_plane(p, data, copy);
      held = plane;
    }
    fn(row, copied ? Plane<T>{copy, p.channels, zeros} : Plane<T>{data, p.row_stride, zeros});
  }
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
HOTSWAP_INLINE int chunk_of(const Problem& p, int64_t begin) {
  return int(p.samples - begin < kChunk ? p.samples - begin : kChunk);
}

// block<N>(c, count) for blocks of N vectors of channels from c on, the last of them `count` numbers wide.
template <class T, class Fn>
HOTSWAP_INLINE void in_blocks(int64_t channels, Fn block) {
  constexpr int kStep = kVector<T>;
  int64_t c = 0;
  for (; c + 4 * kStep <= channels; c += 4 * kStep) block.template operator()<4>(c, All{});
  for (; c + 2 * kStep <= channels; c += 2 * kStep) block.template operator()<2>(c, All{});
  for (; c + kStep <= channels; c += kStep) block.template operator()<1>(c, All{});
  if (c < channels) block.template operator()<1>(c, Part{int(channels - c)});
}

// ---- forward

// What the samples give to N vectors of channels from c on, the last of them `count` numbers wide. before(j): done
// before sample j.
template <class T, int N, class Count, class Fn>
HOTSWAP_INLINE void add_samples(const Corners<const T>& corners, const Samples<typename Wide<T>::S>& s, int n,
                                int64_t c, Count count, typename Wide<T>::V (&sums)[N], Fn before) {
  using V = typename Wide<T>::V;
  for (int j = 0; j < n; ++j) {
    before(j);
    V v[N];
    for (int k = 0; k < 4; ++k) {  // apart from the sums, so that samples do not wait for each other
      const T* from = corners.at[k][j] + c;
      const V weight = s.weight[k][j] - V{};
      for (int i = 0; i < N; ++i) {
        const V term = weight * load(from + i * kVector<T>, count);
        v[i] = k == 0 ? term : v[i] + term;
      }
    }
    for (int i = 0; i < N; ++i) sums[i] += v[i];
  }
}

template <class T>
static void forward_row(const Forward& a, const Row& row, const Plane<T>& value, Samples<typename Wide<T>::S>& s) {
  using V = typename Wide<T>::V;
  const Problem& p = a.of;
  T* out = static_cast<T*>(a.out) + row.index * p.channels;
  Corners<const T> corners;
  const auto look = [&](int64_t begin) HOTSWAP_LAMBDA {
    const int n = chunk_of(p, begin);
    find(p, row.index, begin, n, s);
    point(s, n, value.data, value.stride, value.zeros, corners);
  };
  const bool one_table = p.samples <= kChunk;
  if (one_table) look(0);
  const auto block = [&]<int N, class Count>(int64_t c, Count count) HOTSWAP_LAMBDA {
    V sums[N] = {};
    for (int64_t begin = 0; begin < p.samples; begin += kChunk) {
      if (!one_table) look(begin);
      add_samples<T, N>(corners, s, chunk_of(p, begin), c, count, sums, [](int) HOTSWAP_LAMBDA {});
    }
    for (int i = 0; i < N; ++i) store(out + c + i * kVector<T>, sums[i], count);
  };
  in_blocks<T>(p.channels, block);
}

// Samples on the first levels, as long as few corners fall on a level beside its pixels: most of them are the first to
// look at theirs, which comes out of memory. Later levels have been read soon.
HOTSWAP_INLINE int cold_samples(const Problem& p) {
  int l = 0;
  for (; l < p.levels.count; ++l) {
    const int64_t corners = 4 * p.queries * (p.levels.first[l + 1] - p.levels.first[l]);
    if (corners >= 2 * p.levels.known[l].height * p.levels.known[l].width) break;
  }
  return p.levels.first[l];
}

// Rows [begin, end) where value is not copied and one table holds a row's samples. The next row's places are found
// ahead, and its cold corners fetched, one before each sample of this row: all at once they would be in the way of its
// own. With four levels these are all of them.
template <class T>
static void forward_ahead(const Forward& a, const T* zeros, int64_t begin, int64_t end,
                          Samples<typename Wide<T>::S>& first) {
  using S = typename Wide<T>::S;
  using V = typename Wide<T>::V;
  const Problem& p = a.of;
  const int n = int(p.samples), cold = 4 * cold_samples(p);  // corners
  Samples<S> second;
  second.level = first.level;
  Samples<S>* const samples[2] = {&first, &second};
  Corners<const T> corners[2];
  const auto look = [&](int64_t r) HOTSWAP_LAMBDA {
    const Row row = row_of(p, r, false);
    const T* value = static_cast<const T*>(p.value) + row.n * p.batch_stride + row.m * p.head_stride;
    find(p, r, 0, n, *samples[r % 2]);
    point(*samples[r % 2], n, value, p.row_stride, zeros, corners[r % 2]);
  };
  if (begin < end) look(begin);
  for (int64_t r = begin; r < end; ++r) {
    const Corners<const T>& next = corners[(r + 1) % 2];
    const int last = r + 1 < end ? cold : 0;
    if (r + 1 < end) look(r + 1);
    T* out = static_cast<T*>(a.out) + r * p.channels;
    in_blocks<T>(p.channels, [&]<int N, class Count>(int64_t c, Count count) HOTSWAP_LAMBDA {
      V sums[N] = {};
      add_samples<T, N>(corners[r % 2], *samples[r % 2], n, c, count, sums, [&](int j) HOTSWAP_LAMBDA {
        if (j >= last) return;
        const T* at = next.at[j % 4][j / 4] + c;
        for (int i = 0; i < N * kVector<T>; i += 64 / int(sizeof(T))) __builtin_prefetch(at + i);
      });
      for (int i = 0; i < N; ++i) store(out + c + i * kVector<T>, sums[i], count);
    });
  }
}

static void forward(const Forward& a, void* room, int64_t begin, int64_t end) {
  with_samples(a.of, [&]<typename T>(auto& s) {
    if (a.of.samples <= kChunk && !wants_copy(a.of)) {
      T* zeros = static_cast<T*>(room);
      for (int64_t c = 0; c < a.of.channels; ++c) zeros[c] = T{};
      return forward_ahead<T>(a, zeros, begin, end, s);
    }
    each_row<T>(a.of, room, begin, end,
                [&](const Row& row, const Plane<T>& value) HOTSWAP_LAMBDA { forward_row<T>(a, row, value, s); });
  });
}

// ---- backward: gradients of locations and weights

// Rows of one head lie a row of all heads apart, and five tensors of them are walked at once: more than the hardware
// fetches by itself. What is read and written of the row so many further on.
constexpr int64_t kAhead = 4;
HOTSWAP_INLINE void fetch_ahead(const Backward& a, const Row& row) {
  const Problem& p = a.of;
  const int64_t next = row.index + kAhead * p.heads;
  fetch<0>(a.dout, p.value_type, next * p.channels, p.channels);
  fetch<0>(p.locations, p.location_type, 2 * next * p.samples, 2 * p.samples);
  fetch<0>(p.weights, p.weight_type, next * p.samples, p.samples);
  fetch<1>(a.dlocations, p.location_type, 2 * next * p.samples, 2 * p.samples);
  fetch<1>(a.dweights, p.weight_type, next * p.samples, p.samples);
}

// The products of N vectors of dout's channels with each corner; the first block of them sets dots.
template <class T, int N, class Count>
HOTSWAP_INLINE void add_dots(const Corners<const T>& corners, int n, int64_t c, Count count,
                             const typename Wide<T>::V (&g)[N], typename Wide<T>::S (&dots)[4][kChunk]) {
  for (int j = 0; j < n; j += kGroup) {
    for (int k = 0; k < 4; ++k) {
      typename Wide<T>::V sums[kGroup];
      for (int i = 0; i < kGroup; ++i) {
        const T* from = corners.at[k][j + i] + c;
        sums[i] = g[0] * load(from, count);
        for (int v = 1; v < N; ++v) sums[i] += g[v] * load(from + v * kVector<T>, count);
      }
      typename Wide<T>::S each[kGroup];
      sum_each(sums, each);
      for (int i = 0; i < kGroup; ++i) dots[k][j + i] = c == 0 ? each[i] : dots[k][j + i] + each[i];
    }
  }
}

// Gradients of a row's locations and weights.
template <class T>
static void backward_samples_row(const Backward& a, const Row& row, const Plane<T>& value,
                                 Samples<typename Wide<T>::S>& s) {
  using S = typename Wide<T>::S;
  using V = typename Wide<T>::V;
  using W = typename Wide<T>::W;
  constexpr int kStep = kVector<T>;
  const Problem& p = a.of;
  const T* dout = static_cast<const T*>(a.dout) + row.index * p.channels;
  Corners<const T> corners;
  S dots[4][kChunk] = {}, dxy[2 * kChunk], dx[kChunk], dy[kChunk], da[kChunk];
  fetch_ahead(a, row);
  for (int64_t begin = 0; begin < p.samples; begin += kChunk) {
    const int n = chunk_of(p, begin);
    find(p, row.index, begin, n, s);
    point(s, n, value.data, value.stride, value.zeros, corners);
    in_blocks<T>(p.channels, [&]<int N, class Count>(int64_t c, Count count) HOTSWAP_LAMBDA {
      V g[N];
      for (int i = 0; i < N; ++i) g[i] = load(dout + c + i * kStep, count);
      add_dots<T, N>(corners, n, c, count, g, dots);
    });
    for (int j = 0; j < n; j += kStep) {
      V t[4];  // a corner outside counts 0, where dout is infinite too
      for (int k = 0; k < 4; ++k) t[k] = vector_at<W>(s.row[k] + j) >= 0 ? load(dots[k] + j) : V{};
      const V fx = load(s.fx + j), fy = load(s.fy + j), gx = S(1) - fx, gy = S(1) - fy, weight = load(s.a + j);
      store(da + j, gy * (gx * t[0] + fx * t[1]) + fy * (gx * t[2] + fx * t[3]));
      store(dx + j, load(s.level.width + j) * weight * (gy * (t[1] - t[0]) + fy * (t[3] - t[2])));
      store(dy + j, load(s.level.height + j) * weight * (gx * (t[2] - t[0]) + fx * (t[3] - t[1])));
    }
    for (int j = 0; j < n; ++j) dxy[2 * j] = dx[j], dxy[2 * j + 1] = dy[j];
    const int64_t at = row.index * p.samples + begin;
    write_numbers(a.dlocations, p.location_type, 2 * at, 2 * n, dxy);
    write_numbers(a.dweights, p.weight_type, at, n, da);
  }
}

static void backward_samples(const Backward& a, void* room, int64_t begin, int64_t end) {
  with_samples(a.of, [&]<typename T>(auto& s) {
    each_row<T>(a.of, room, begin, end, [&](const Row& row, const Plane<T>& value) HOTSWAP_LAMBDA {
      backward_samples_row<T>(a, row, value, s);
    });
  });
}

// ---- backward: the gradient of value

// What a query's gradient adds to corners' rows of `width` channels; where that is all of a plane, from registers.
template <class T, class S>
HOTSWAP_INLINE void add_rows(const Corners<S>& corners, const Samples<S>& s, int n, const S* g, int64_t width) {
  using V = typename Wide<T>::V;
  constexpr int kStep = kVector<T>, kWhole = int(kPlaneChannels) / kStep;
  V held[kWhole] = {};
  const bool whole = width == kPlaneChannels;
  for (int i = 0; i < kWhole && whole; ++i) held[i] = load(g + i * kStep, All{});
  for (int j = 0; j < n; ++j) {
    for (int k = 0; k < 4; ++k) {
      S* to = corners.at[k][j];
      const V weight = s.weight[k][j] - V{};
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
  __builtin_memset(scratch, 0, sizeof(S) * size_t((p.rows + 1) * kPlaneChannels));
  Corners<S> corners;
  for (int64_t q = 0; q < p.queries; ++q) {
    const int64_t index = (n * p.queries + q) * p.heads + m;
    S buffer[kPlaneChannels];
    const S* g =
        read_numbers<S>(static_cast<const T*>(a.dout), p.value_type, index * p.channels + first, width, buffer);
    for (int64_t begin = 0; begin < p.samples; begin += kChunk) {
      const int count = chunk_of(p, begin);
      find(p, index, begin, count, s);
      point(s, count, scratch, kPlaneChannels, scratch + p.rows * kPlaneChannels, corners);
      add_rows<T>(corners, s, count, g, width);
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
