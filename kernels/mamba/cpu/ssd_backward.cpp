// Backward of ssd.h: the chunks from the last to the first, each from the state that forward saved at its start.
// Compiled once per ISA.
#include "kernels/mamba/cpu/ssd_chunk.h"

namespace mamba::ssd::HOTSWAP_ISA {
namespace {

// A thread's arrays: of a block of heads (B to dC_columns), of one head, and what leaves the chunk of each head.
struct Arrays {
  float *B, *C, *rows;                     // [kChunk, state]
  float *B_columns, *C_columns, *columns;  // [state, kChunk]
  float *dB_columns, *dC_columns;          // [state, kChunk]: without what comes through dG
  float *G, *dG, *T, *decayed, *E;         // [kChunk, kChunk]; decayed: G T
  float *x, *dy, *v, *y, *scaled;          // [kChunk, dim]
  float *x_columns, *dy_columns;           // [dim, kChunk]
  float *H, *dH;                           // [state, dim]; dH: [heads, state, dim]
  float *keep, *dD;                        // [state]; [dim]

  Arrays(const Problem& p, Scratch s) {
    const int64_t dim = padded(p.dim), state = padded(p.state);
    const auto take = [&](int64_t count, auto&... arrays) { ((arrays = s.take(count)), ...); };
    take(kChunk * state, B, C, rows, B_columns, C_columns, columns, dB_columns, dC_columns);
    take(kChunk * kChunk, G, dG, T, decayed, E);
    take(kChunk * dim, x, dy, v, y, scaled, x_columns, dy_columns);
    H = s.take(state * dim), keep = s.take(state), dD = s.take(dim), dH = s.take(kHeads * state * dim);
  }
};

// to = scale[row] * from
HOTSWAP_INLINE void scale_rows(float* to, const float* from, const float* scale, int count, int64_t width) {
  for (int i = 0; i < count; ++i) {
    for (int64_t n = 0; n < width; n += kLanes) store(to + i * width + n, scale[i] * load(from + i * width + n));
  }
}
HOTSWAP_INLINE void scale_columns(float* data, const float* scale, int64_t rows) {
  for (int64_t i = 0; i < rows * kChunk; i += kLanes) store(data + i, load(scale + i % kChunk) * load(data + i));
}
HOTSWAP_INLINE float dot(const float* a, const float* b, int64_t count) {  // count: whole vectors
  return sweep_sum(count, [&](int64_t n, auto part) HOTSWAP_LAMBDA { return load(a + n, part) * load(b + n, part); });
}

// dy of a head in w.dy, after the gate's backward: dz, for which y is made again.
template <class T>
void load_gradient(const Backward& a, const Rows& r, const Steps& s, int64_t head, Arrays& w) {
  const Problem& p = a.of;
  const int64_t dim = padded(p.dim);
  load_rows<T>(w.dy, a.dy, r, head, p.dim);
  if (p.z.data == nullptr) return;
  scale_rows(w.scaled, w.x, s.delta, r.count, dim);
  multiply<Into::kSet>(w.y, dim, {w.C, padded(p.state), 1}, {w.H, dim}, r.count, dim, p.state);
  add_before(w.y, w.decayed, w.scaled, dim, r.count, s.enter);
  const float* skip = p.D == nullptr ? nullptr : p.D + head * p.dim;
  for (int i = 0; i < r.count; ++i) {
    float* dy = w.dy + i * dim;
    T* dz = at<T>(a.dz, r, i, head);
    const T* z = at<const T>(p.z, r, i, head);
    sweep(p.dim, [&](int64_t n, auto part) HOTSWAP_LAMBDA {
      F y = load(w.y + i * dim + n);
      if (skip != nullptr) y += load(skip + n, part) * load(w.x + i * dim + n);
      const Gate gate = gate_of(r.padding[i] ? F{} : load(z + n, part));
      const F d = load(dy + n);
      store(dz + n, d * y * gate.slope, part);
      store(dy + n, d * gate.value);
    });
  }
}

// dx of a head and dD; ddelta: v . x.
template <class T>
void finish_rows(const Backward& a, const Rows& r, const Steps& s, int64_t head, const Arrays& w, float* ddelta) {
  const Problem& p = a.of;
  const int64_t dim = padded(p.dim);
  const float* skip = p.D == nullptr ? nullptr : p.D + head * p.dim;
  zero(w.dD, dim);
  for (int i = 0; i < r.count; ++i) {
    const float *v = w.v + i * dim, *dy = w.dy + i * dim, *x = w.x + i * dim;
    T* dx = at<T>(a.dx, r, i, head);
    sweep(p.dim, [&](int64_t n, auto part) HOTSWAP_LAMBDA {
      F d = s.delta[i] * load(v + n);
      if (skip != nullptr) {
        d += load(skip + n, part) * load(dy + n);
        store(w.dD + n, load(w.dD + n) + load(dy + n) * load(x + n));
      }
      store(dx + n, d, part);
    });
    ddelta[i] = dot(v, x, dim);
  }
  float* dD = a.dD + (r.batch * p.heads + head) * p.dim;  // chunk by chunk: a long sequence's sum stays exact longer
  sweep(p.dim, [&](int64_t n, auto part) HOTSWAP_LAMBDA { store(dD + n, load(dD + n, part) + load(w.dD + n), part); });
}

// to_k = sum over i >= k > j of m_ij: row by row from below into sums of columns, of which those left of k count.
void sum_between(float* to, const float* m, int count) {
  F columns[kChunk / kLanes] = {};
  I lane;
  for (int l = 0; l < kLanes; ++l) lane[l] = l;
  for (int64_t k = count - 1; k >= 0; --k) {
    for (int64_t v = 0; v < strip_end(k) / kLanes; ++v) columns[v] += load(m + k * kChunk + v * kLanes);
    F left{};
    for (int64_t v = 0; v * kLanes < k; ++v) left += select(lane < int32_t(k - v * kLanes) + I{}, columns[v], F{});
    to[k] = sum(left);
  }
}

// dG of this head in w.dG, G dG in w.E.
HOTSWAP_INLINE void finish_triangle(const Steps& s, const Arrays& w, int count, bool first_head) {
  for (int i = 0; i < count; ++i) {
    for (int64_t j = 0; j < strip_end(i); j += kLanes) {
      const int64_t n = i * kChunk + j;
      const F d = load(w.T + n) * load(s.delta + j) * load(w.E + n);
      store(w.dG + n, first_head ? d : load(w.dG + n) + d);
      store(w.E + n, load(w.G + n) * d);
    }
  }
}

template <class T>
void backward_head(const Backward& a, const Rows& r, int64_t head, int64_t nth, Arrays& w, double* dA, double* dbias) {
  const Problem& p = a.of;
  const int64_t dim = padded(p.dim), state = padded(p.state);
  const int count = r.count;
  float* dH = w.dH + nth * p.state * dim;
  const float* saved = a.states + ((r.batch * p.chunks() + r.first / kChunk) * p.heads + head) * p.state * p.dim;
  for (int64_t n = 0; n < p.state; ++n) {
    zero(w.H + n * dim, dim);
    store_row(w.H + n * dim, saved + n * p.dim, p.dim);
  }
  Steps s;
  steps_of(s, p, r, head);
  for (int i = 0; i < count; ++i) {
    decays(s, r, i, [&](int64_t j, F decay) HOTSWAP_LAMBDA {
      const int64_t n = i * kChunk + j;
      store(w.T + n, decay);
      store(w.decayed + n, decay * load(w.G + n));
    });
  }
  load_rows<T>(w.x, p.x, r, head, p.dim);
  load_gradient<T>(a, r, s, head, w);
  transpose_to(w.x_columns, kChunk, w.x, dim, kChunk, dim);
  transpose_to(w.dy_columns, kChunk, w.dy, dim, kChunk, dim);

  // through the states: of rows j that leave, and of rows i that the entering state reaches
  float ddelta[kChunk], between[kChunk], entered[kChunk] = {}, left[kChunk];
  multiply<Into::kSet>(w.v, dim, {w.B, state, 1}, {dH, dim}, count, dim, p.state);
  for (int j = 0; j < count; ++j) left[j] = s.leave[j] * s.delta[j] * dot(w.v + j * dim, w.x + j * dim, dim);
  add_after(w.v, w.decayed, w.dy, dim, count, s.leave);
  finish_rows<T>(a, r, s, head, w, ddelta);

  dots(w.E, w.dy, dim, w.x_columns, count, p.dim);
  finish_triangle(s, w, count, nth == 0);
  sum_between(between, w.E, count);

  float weights[kChunk];
  for (int j = 0; j < kChunk; ++j) weights[j] = s.leave[j] * s.delta[j];
  scale_columns(w.x_columns, weights, p.dim);
  multiply<Into::kAdd>(w.dB_columns, kChunk, {dH, dim, 1}, {w.x_columns, kChunk}, p.state, kChunk, p.dim);
  scale_columns(w.dy_columns, s.enter, p.dim);
  multiply<Into::kSet>(w.columns, kChunk, {w.H, dim, 1}, {w.dy_columns, kChunk}, p.state, kChunk, p.dim);
  for (int64_t j = 0; j < kChunk; j += kLanes) {
    F total{};
    for (int64_t n = 0; n < p.state; ++n) {
      const int64_t at = n * kChunk + j;
      const F d = load(w.columns + at);
      total += d * load(w.C_columns + at);
      store(w.dC_columns + at, load(w.dC_columns + at) + d);
    }
    store(entered + j, total);
  }

  const float kept = s.keep * dot(w.H, dH, p.state * dim);
  for (int64_t n = 0; n < p.state; ++n) w.keep[n] = s.keep;
  scale_rows(w.scaled, w.dy, s.enter, count, dim);
  multiply<Into::kScaled>(dH, dim, {w.C, 1, state}, {w.scaled, dim}, p.state, dim, count, w.keep);

  // l_k lies between rows before k that leave and the state after, and between the state before and rows from k on
  float before = 0, after = 0;
  for (int k = 0; k < count; ++k) {
    between[k] += before + kept;
    before += left[k];
  }
  for (int k = count - 1; k >= 0; --k) {
    after += entered[k];
    const float dl = between[k] + after;
    *dA += double(s.delta[k]) * double(dl);
    ddelta[k] = (ddelta[k] + p.A[head] * dl) * s.slope[k];
    *dbias += double(ddelta[k]);
  }
  with_dtype(p.dt_type, [&]<typename Dt>() {
    for (int i = 0; i < count; ++i) *at<Dt>(a.ddt, r, i, head) = from_float<Dt>(ddelta[i]);
  });
}

// dB and dC of a block of heads.
void finish_group(const Backward& a, const Item& item, const Rows& r, Arrays& w) {
  const Problem& p = a.of;
  const int64_t state = padded(p.state), parts = p.groups * p.blocks();
  float ones[kChunk];
  for (float& one : ones) one = 1.f;
  const int64_t first = ((r.batch * p.length + r.first) * parts + item.group * p.blocks() + item.block) * p.state;
  const auto finish = [&](float* to, const float* columns, auto add) {
    transpose_to(w.rows, state, columns, kChunk, state, kChunk);
    add();
    for (int i = 0; i < r.count; ++i) store_row(to + first + i * parts * p.state, w.rows + i * state, p.state);
  };
  finish(a.dB_parts, w.dB_columns, [&] { add_after(w.rows, w.dG, w.C, state, r.count, ones); });
  finish(a.dC_parts, w.dC_columns, [&] { add_before(w.rows, w.dG, w.B, state, r.count, ones); });
}

template <class T>
void backward_item(const Backward& a, const Item& item, Scratch scratch) {
  const Problem& p = a.of;
  const int64_t dim = padded(p.dim), state = padded(p.state);
  Arrays w(p, scratch);
  double dA[kHeads] = {}, dbias[kHeads] = {};
  const auto outside = [&](auto* data, int64_t h) {
    return data == nullptr ? nullptr : data + (item.batch * p.heads + item.head + h) * p.dim * p.state;
  };
  for (int64_t h = 0; h < item.heads; ++h) load_state(w.dH + h * p.state * dim, outside(a.dfinal, h), p);
  zero(a.dD + (item.batch * p.heads + item.head) * p.dim, item.heads * p.dim);
  // rows of columns behind the last number of a state, which finish_group reads
  zero(w.dB_columns, state * kChunk), zero(w.dC_columns, state * kChunk);

  for (int64_t chunk = p.chunks() - 1; chunk >= 0; --chunk) {
    const Rows r = rows_of(p, item.batch, chunk);
    load_rows<T>(w.B, p.B, r, item.group, p.state);
    load_rows<T>(w.C, p.C, r, item.group, p.state);
    transpose_to(w.B_columns, kChunk, w.B, state, kChunk, p.state);
    transpose_to(w.C_columns, kChunk, w.C, state, kChunk, p.state);
    dots(w.G, w.C, state, w.B_columns, r.count, p.state);
    zero(w.dB_columns, p.state * kChunk), zero(w.dC_columns, p.state * kChunk);
    for (int64_t h = 0; h < item.heads; ++h) backward_head<T>(a, r, item.head + h, h, w, &dA[h], &dbias[h]);
    finish_group(a, item, r, w);
  }
  for (int64_t h = 0; h < item.heads; ++h) {
    const int64_t at = item.batch * p.heads + item.head + h;
    a.dA[at] = float(dA[h]), a.ddt_bias[at] = float(dbias[h]);
    if (a.dinitial != nullptr) store_state(outside(a.dinitial, h), w.dH + h * p.state * dim, p);
  }
}

}  // namespace

void backward(const Backward& a, float* scratch, int64_t begin, int64_t end) {
  with_dtype(a.of.type, [&]<typename T>() {
    for (int64_t i = begin; i < end; ++i) backward_item<T>(a, item_of(a.of, i), {scratch});
  });
}

// dB and dC of tokens [begin, end) of all batch entries: the blocks of heads of each group, in order.
void sum_parts(const Backward& a, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  with_dtype(p.type, [&]<typename T>() {
    for (int64_t row = begin; row < end; ++row) {
      const Rows r{
          .batch = row / p.length, .first = row % p.length, .count = 1, .padding = {}, .start = {}, .last_start = -1};
      for (int64_t g = 0; g < p.groups; ++g) {
        const int64_t first = (row * p.groups + g) * p.blocks() * p.state;
        T *dB = at<T>(a.dB, r, 0, g), *dC = at<T>(a.dC, r, 0, g);
        sweep(p.state, [&](int64_t n, auto part) HOTSWAP_LAMBDA {
          F b{}, c{};
          for (int64_t k = 0; k < p.blocks(); ++k) {
            b += load(a.dB_parts + first + k * p.state + n, part);
            c += load(a.dC_parts + first + k * p.state + n, part);
          }
          store(dB + n, b, part);
          store(dC + n, c, part);
        });
      }
    }
  });
}

}  // namespace mamba::ssd::HOTSWAP_ISA
