// Deformable attention on the CPU. Compiled once per ISA. Nothing is materialised: of each query and head a table says
// where the corners of its samples lie and how much each counts, and the channels go through it as vectors.
#include "kernels/deformable/numbers.h"

namespace deformable::HOTSWAP_ISA {

constexpr int64_t kChunk = 64;  // samples in a table; more than models have

// ---- where a sample lies

template <class S>
struct Place {
  int64_t x0, y0;
  S fx, fy;
};

template <class S>
HOTSWAP_INLINE bool find(const Level& level, S x, S y, Place<S>& p) {  // false: it gives nothing; NaN does not either
  const S width = S(level.width), height = S(level.height);
  const S px = x * width - S(0.5), py = y * height - S(0.5);
  if (!(px > S(-1) && px < width && py > S(-1) && py < height)) return false;
  p.x0 = int64_t(px) - (px < S(0));  // floor: px > -1
  p.y0 = int64_t(py) - (py < S(0));
  p.fx = px - S(p.x0);
  p.fy = py - S(p.y0);
  return true;
}

// fn(level, first, last) for the samples [begin, end), level by level.
template <class Fn>
HOTSWAP_INLINE void by_level(const Levels& levels, int64_t begin, int64_t end, Fn fn) {
  for (int l = 0; l < levels.count; ++l) {
    const int64_t first = levels.first[l] > begin ? levels.first[l] : begin;
    const int64_t last = levels.first[l + 1] < end ? levels.first[l + 1] : end;
    if (first < last) fn(levels.known[l], first, last);
  }
}

template <class S>
struct Corner {
  int64_t place;  // of its channels in value, from the image's and head's first
  S weight;       // the sample's and the corner's
};

// A query's and head's samples, kChunk at a time.
template <class S>
struct Samples {
  S xy_buffer[2 * kChunk], a_buffer[kChunk];
  const S *xy, *a;
};
template <class S>
HOTSWAP_INLINE void read_samples(const Problem& p, int64_t row, int64_t begin, int64_t n, Samples<S>& in) {
  const int64_t at = row * p.samples + begin;
  in.xy = read_numbers(p.locations, p.location_type, 2 * at, 2 * n, in.xy_buffer);
  in.a = read_numbers(p.weights, p.weight_type, at, n, in.a_buffer);
}

// The corners inside their levels of samples [begin, end); rows `stride` apart.
template <class S>
HOTSWAP_INLINE int corners_of(const Problem& p, int64_t row, int64_t begin, int64_t end, int64_t stride,
                              Corner<S>* corners) {
  Samples<S> in;
  read_samples(p, row, begin, end - begin, in);
  int count = 0;
  by_level(p.levels, begin, end, [&](const Level& level, int64_t first, int64_t last) HOTSWAP_LAMBDA {
    for (int64_t j = first; j < last; ++j) {
      Place<S> at;
      if (!find(level, in.xy[2 * (j - begin)], in.xy[2 * (j - begin) + 1], at)) continue;
      const S a = in.a[j - begin];
      const S top = a * (S(1) - at.fy), bottom = a * at.fy;
      const bool left_in = at.x0 >= 0, right_in = at.x0 + 1 < level.width;
      const int64_t place = (level.start + at.y0 * level.width + at.x0) * stride, below = level.width * stride;
      if (at.y0 >= 0) {
        if (left_in) corners[count++] = {place, top * (S(1) - at.fx)};
        if (right_in) corners[count++] = {place + stride, top * at.fx};
      }
      if (at.y0 + 1 < level.height) {
        if (left_in) corners[count++] = {place + below, bottom * (S(1) - at.fx)};
        if (right_in) corners[count++] = {place + below + stride, bottom * at.fx};
      }
    }
  });
  return count;
}

// Row r of batch x heads x queries: an image's and head's queries follow each other, so that its values stay in cache.
struct Row {
  int64_t n, m, q, index;  // index: in batch x queries x heads
};
HOTSWAP_INLINE Row row_of(const Problem& p, int64_t r) {
  const int64_t q = r % p.queries, m = r / p.queries % p.heads, n = r / p.queries / p.heads;
  return {n, m, q, (n * p.queries + q) * p.heads + m};
}

// ---- forward

// N vectors of channels from c on, the last of them `count` numbers wide.
template <class T, int N, class Count>
HOTSWAP_INLINE void add_corners(const T* value, const Corner<typename Wide<T>::S>* corners, int n, Count count,
                                typename Wide<T>::V (&sums)[N]) {
  for (int k = 0; k < n; ++k) {
    const T* from = value + corners[k].place;
    const typename Wide<T>::V weight = typename Wide<T>::V{} + corners[k].weight;
    for (int i = 0; i < N; ++i) sums[i] += weight * load(from + i * kVector<T>, count);
  }
}

template <class T>
static void forward_row(const Forward& a, const Row& row) {
  using S = typename Wide<T>::S;
  using V = typename Wide<T>::V;
  const Problem& p = a.of;
  const T* value = static_cast<const T*>(p.value) + row.n * p.batch_stride + row.m * p.head_stride;
  T* out = static_cast<T*>(a.out) + row.index * p.channels;
  const int64_t samples = p.samples;
  Corner<S> corners[4 * kChunk];
  int n = samples <= kChunk ? corners_of(p, row.index, 0, samples, p.row_stride, corners) : 0;
  const auto block = [&]<int N, class Count>(int64_t c, Count count) HOTSWAP_LAMBDA {
    V sums[N] = {};
    if (samples <= kChunk) {
      add_corners<T, N>(value + c, corners, n, count, sums);
    } else {
      for (int64_t begin = 0; begin < samples; begin += kChunk) {
        const int64_t end = begin + kChunk < samples ? begin + kChunk : samples;
        n = corners_of(p, row.index, begin, end, p.row_stride, corners);
        add_corners<T, N>(value + c, corners, n, count, sums);
      }
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

static void forward(const Forward& a, int64_t begin, int64_t end) {
  with_number(a.of.value_type, [&]<typename T>() {
    for (int64_t r = begin; r < end; ++r) forward_row<T>(a, row_of(a.of, r));
  });
}

// ---- backward: gradients of locations and weights

template <class T>
static void backward_samples_row(const Backward& a, const Row& row) {
  using S = typename Wide<T>::S;
  using V = typename Wide<T>::V;
  const Problem& p = a.of;
  const T* value = static_cast<const T*>(p.value) + row.n * p.batch_stride + row.m * p.head_stride;
  const T* dout = static_cast<const T*>(a.dout) + row.index * p.channels;
  const int64_t samples = p.samples;
  Samples<S> in;
  S dxy[2 * kChunk], da[kChunk];
  for (int64_t begin = 0; begin < samples; begin += kChunk) {
    const int64_t end = begin + kChunk < samples ? begin + kChunk : samples;
    read_samples(p, row.index, begin, end - begin, in);
    by_level(p.levels, begin, end, [&](const Level& level, int64_t first, int64_t last) HOTSWAP_LAMBDA {
      for (int64_t j = first - begin; j < last - begin; ++j) {
        da[j] = dxy[2 * j] = dxy[2 * j + 1] = S(0);
        Place<S> at;
        if (!find(level, in.xy[2 * j], in.xy[2 * j + 1], at)) continue;
        // A corner outside is read at the nearest one inside, and counts 0: no branch in the loop over channels.
        const bool in_x[2] = {at.x0 >= 0, at.x0 + 1 < level.width}, in_y[2] = {at.y0 >= 0, at.y0 + 1 < level.height};
        const int64_t x[2] = {in_x[0] ? at.x0 : 0, in_x[1] ? at.x0 + 1 : at.x0};
        const int64_t y[2] = {in_y[0] ? at.y0 : 0, in_y[1] ? at.y0 + 1 : at.y0};
        const T* v[4];
        for (int k = 0; k < 4; ++k) v[k] = value + (level.start + y[k / 2] * level.width + x[k % 2]) * p.row_stride;
        V sums[4] = {};
        vectors<T>(p.channels, [&](int64_t c, auto count) HOTSWAP_LAMBDA {
          const V g = load(dout + c, count);
          for (int k = 0; k < 4; ++k) sums[k] += g * load(v[k] + c, count);
        });
        S s[4];
        for (int k = 0; k < 4; ++k) s[k] = in_y[k / 2] && in_x[k % 2] ? sum(sums[k]) : S(0);
        const S fx = at.fx, fy = at.fy, gx = S(1) - fx, gy = S(1) - fy;
        da[j] = gy * (gx * s[0] + fx * s[1]) + fy * (gx * s[2] + fx * s[3]);
        dxy[2 * j] = S(level.width) * in.a[j] * (gy * (s[1] - s[0]) + fy * (s[3] - s[2]));
        dxy[2 * j + 1] = S(level.height) * in.a[j] * (gx * (s[2] - s[0]) + fx * (s[3] - s[1]));
      }
    });
    const int64_t at = row.index * samples + begin;
    write_numbers(a.dlocations, p.location_type, 2 * at, 2 * (end - begin), dxy);
    write_numbers(a.dweights, p.weight_type, at, end - begin, da);
  }
}

static void backward_samples(const Backward& a, int64_t begin, int64_t end) {
  with_number(a.of.value_type, [&]<typename T>() {
    for (int64_t r = begin; r < end; ++r) backward_samples_row<T>(a, row_of(a.of, r));
  });
}

// ---- backward: the gradient of value

template <class T>
static void backward_plane(const Backward& a, typename Wide<T>::S* scratch, int64_t plane) {
  using S = typename Wide<T>::S;
  using V = typename Wide<T>::V;
  const Problem& p = a.of;
  const int64_t parts = (p.channels + kPlaneChannels - 1) / kPlaneChannels;
  const int64_t first = plane % parts * kPlaneChannels, m = plane / parts % p.heads, n = plane / parts / p.heads;
  const int64_t width = p.channels - first < kPlaneChannels ? p.channels - first : kPlaneChannels;
  const int64_t samples = p.samples;
  __builtin_memset(scratch, 0, sizeof(S) * size_t(p.rows * kPlaneChannels));
  Corner<S> corners[4 * kChunk];
  for (int64_t q = 0; q < p.queries; ++q) {
    const int64_t row = (n * p.queries + q) * p.heads + m;
    S g[kPlaneChannels];
    const S* dout = read_numbers<S>(static_cast<const T*>(a.dout), p.value_type, row * p.channels + first, width, g);
    for (int64_t begin = 0; begin < samples; begin += kChunk) {
      const int64_t end = begin + kChunk < samples ? begin + kChunk : samples;
      const int count = corners_of(p, row, begin, end, kPlaneChannels, corners);
      for (int k = 0; k < count; ++k) {
        S* to = scratch + corners[k].place;
        const V weight = V{} + corners[k].weight;
        const auto add = [&](int64_t c, auto some) HOTSWAP_LAMBDA {
          store(to + c, load(to + c, some) + weight * load(dout + c, some), some);
        };
        if (width == kPlaneChannels) {
          for (int64_t c = 0; c < kPlaneChannels; c += kVector<T>) add(c, All{});
        } else {
          vectors<T>(width, add);
        }
      }
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
  with_number(a.of.value_type, [&]<typename T>() {
    for (int64_t plane = begin; plane < end; ++plane)
      backward_plane<T>(a, static_cast<typename Wide<T>::S*>(scratch), plane);
  });
}

const Table kTable = {.forward = forward, .backward_samples = backward_samples, .backward_value = backward_value};

}  // namespace deformable::HOTSWAP_ISA
