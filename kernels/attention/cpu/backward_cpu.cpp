// Gradients of a tile of rows, key tile after key tile: five products. dq stays with the tile; what the rows add to dk
// and dv goes into sums that a key head's rows share. Compiled once per ISA.
//
//   p_ij = exp(z_ij - lse_i)     dp_ij = dout_i . v_j     D_i = dout_i . out_i - dlse_i
//   dx_ij = p_ij (dp_ij - D_i) (1 - tanh(x_ij / softcap)^2)
//   dq_i = scale sum_j dx_ij k_j     dk_j = sum_i dx_ij scale q_i     dv_j = sum_i p_ij dout_i
//   dsink = -sum_i exp(sink - lse_i) D_i
#include "kernels/attention/cpu/kernels.h"
#include "kernels/attention/cpu/scores.h"

namespace attention::HOTSWAP_ISA {
namespace {

struct Tile {
  int64_t dim, value_dim;          // padded
  float *q, *dout, *dq;            // [rows, dim], [rows, value_dim], [rows, dim]
  uint32_t *q_pairs, *dout_pairs;  // [rows, dim / 2], [rows, value_dim / 2], or null
  float *lse, *delta;              // [rows]
  float *k, *k_across, *v_across;  // [kTileKeys, dim], and across: [number, kKeysStride]
  float *scores, *dscores;         // [kBlockRows, kTileKeys]

  Tile(const Attention& a, Scratch scratch) : dim(padded(a.dim)), value_dim(padded(a.value_dim)) {
    const int64_t rows = tile_rows(a);
    q = scratch.take(rows * dim);
    dout = scratch.take(rows * value_dim);
    dq = scratch.take(rows * dim);
    q_pairs = scratch.take_pairs(a.pairs, rows * dim / 2);
    dout_pairs = scratch.take_pairs(a.pairs, rows * value_dim / 2);
    lse = scratch.take(rows);
    delta = scratch.take(rows);
    k = scratch.take(kTileKeys * dim);
    k_across = scratch.take(a.dim * kKeysStride);
    v_across = scratch.take(a.value_dim * kKeysStride);
    scores = scratch.take(kBlockRows * kTileKeys);
    dscores = scratch.take(kBlockRows * kTileKeys);
  }
};

// What the rows add to: dk [keys, dim], dv [keys, value_dim].
struct Sums {
  float *dk, *dv;
};
HOTSWAP_INLINE Sums sums_of(const Attention& a, const Sequence& s, float* part) {
  return {part, part + s.keys * padded(a.dim)};
}

// scores[from, to) become p, dscores dx; zeros elsewhere in [begin, end).
template <Precision kPrecision>
static void weigh_back(float* scores, float* dscores, int64_t begin, int64_t end, Span seen, const RowOptions& o,
                       float lse, float delta) {
  for (int64_t i = begin; i < end; ++i) {
    if (i >= seen.first && i < seen.end) i = seen.end;
    if (i < end) scores[i] = dscores[i] = 0.f;
  }
  if (seen.empty()) return;
  float *x = scores + seen.first, *dx = dscores + seen.first;
  const bool alibi = o.slope != 0.f;
  sweep(seen.end - seen.first, [&](int64_t i, auto part) HOTSWAP_LAMBDA {
    F z = load(x + i, part), slope = splat<F>(1.f);
    if (o.softcap > 0.f) {
      const F t = tanh(z * (1.f / o.softcap));
      slope -= t * t;
      z = o.softcap * t;
    }
    if (alibi) z += distance_bias(o, seen.first + i);
    const F p = exp_within_87<kPrecision>(z - lse);
    store(dx + i, p * (load(dx + i, part) - delta) * slope, part);
    store(x + i, p, part);
  });
}

// Rows [first, end) of the tile that begins at row `tile_row`, with the keys [key, key + count).
template <Precision kPrecision>
static void block_backward(const AttentionBackward& a, const Item& item, const Tile& t, int64_t tile_row, int64_t first,
                           int64_t end, int64_t key, int64_t count, const Sums& sums) {
  const Sequence& s = a.sequences[item.sequence];
  const int64_t group = a.group(), rows = end - first;
  const Span all = keys_of(a, s, tile_row + first / group, tile_row + (end - 1) / group + 1);
  const Span here = cut({all.first - key, all.end - key}, 0, count);
  if (here.empty()) return;
  const int64_t begin = here.first / kLanes * kLanes, stop = (here.end + kLanes - 1) / kLanes * kLanes;
  const float *q = t.q + first * t.dim, *dout = t.dout + first * t.value_dim;
  multiply_scores(t.scores + begin, Scored{t.q, t.q_pairs, t.dim, t.dim / 2}.from(first), t.k_across + begin, rows,
                  stop - begin, a.dim, a.scale);
  multiply_scores(t.dscores + begin, Scored{t.dout, t.dout_pairs, t.value_dim, t.value_dim / 2}.from(first),
                  t.v_across + begin, rows, stop - begin, a.value_dim, 1.f);
  for (int64_t i = first; i < end; ++i) {
    const int64_t row = tile_row + i / group, head = item.key_head * group + i % group;
    const Span of_row = keys_of(a, s, row);
    // A row that sees no key, or none of a finite score, has lse -infinity and no gradient.
    const Span seen =
        t.lse[i] == -kInfinity ? Span{0, 0} : cut({of_row.first - key, of_row.end - key}, here.first, here.end);
    weigh_back<kPrecision>(t.scores + (i - first) * kTileKeys, t.dscores + (i - first) * kTileKeys, here.first,
                           here.end, seen, row_options(a, s, row, head, key), t.lse[i], t.delta[i]);
  }
  const int64_t seen = here.end - here.first, at = key + here.first;
  multiply<Into::kAdd>(sums.dv + at * t.value_dim, t.value_dim, {t.scores + here.first, 1, kTileKeys},
                       {dout, t.value_dim}, seen, t.value_dim, rows);
  multiply<Into::kAdd>(sums.dk + at * t.dim, t.dim, {t.dscores + here.first, 1, kTileKeys}, {q, t.dim}, seen, t.dim,
                       rows);
  multiply<Into::kAdd>(t.dq + first * t.dim, t.dim, {t.dscores + here.first, kTileKeys, 1},
                       {t.k + here.first * t.dim, t.dim}, rows, t.dim, seen);
}

// q, dout, lse and D of the tile's rows; what they give dsinks.
template <class T>
static void begin_tile(const AttentionBackward& a, const Item& item, const Tile& t, int64_t row, int64_t row_end,
                       double* dsinks) {
  const Sequence& s = a.sequences[item.sequence];
  const int64_t group = a.group(), rows = (row_end - row) * group;
  widen_rows<T>(t.q, a, a.q, s, item, row, row_end, a.dim, a.scale);
  widen_rows<T>(t.dout, a, a.dout, s, item, row, row_end, a.value_dim, 1.f);
  pair_rows<T>(t.q_pairs, a, a.q, s, item, row, row_end, a.dim);
  pair_rows<T>(t.dout_pairs, a, a.dout, s, item, row, row_end, a.value_dim);
  for (int64_t i = 0; i < rows * t.dim; ++i) t.dq[i] = 0.f;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t of = row + i / group, head = item.key_head * group + i % group;
    const int64_t at = s.batch * a.lse_batch + head * a.lse_head + s.first_row + of;
    const T* out = row_of<const T>(a.out, s.batch, s.first_row + of, head);
    const float* dout = t.dout + i * t.value_dim;
    t.lse[i] = a.lse[at];
    t.delta[i] = sweep_sum(a.value_dim, [&](int64_t c, auto part)
                                            HOTSWAP_LAMBDA { return load(out + c, part) * load(dout + c, part); }) -
                 (a.dlse == nullptr ? 0.f : a.dlse[at]);
    if (dsinks != nullptr) dsinks[i % group] -= double(exp(a.sinks[head] - t.lse[i])) * double(t.delta[i]);
  }
}

template <class T>
static void backward_of(const AttentionBackward& a, const Item& item, float* part, double* dsinks, float* scratch) {
  const Sequence& s = a.sequences[item.sequence];
  const int64_t group = a.group(), most_rows = tile_positions(a);
  const Tile t(a, {scratch});
  const Sums sums = sums_of(a, s, part);
  for (int64_t i = 0; i < backward_part(a, s.keys); ++i) part[i] = 0.f;
  const T* found[kTileKeys];
  for (int64_t row = item.first; row < item.end; row += most_rows) {
    const int64_t row_end = least(item.end, row + most_rows), rows = (row_end - row) * group;
    begin_tile<T>(a, item, t, row, row_end, dsinks);
    const Span all = keys_of(a, s, row, row_end);
    for (int64_t key = all.first; key < all.end; key += kTileKeys) {
      const int64_t count = least(kTileKeys, all.end - key);
      find_keys(found, a, a.k, s, item.key_head, key, count);
      lay_across(t.k_across, found, count, a.dim, a.pairs);
      for (int64_t i = 0; i < count; ++i) widen_row(t.k + i * t.dim, found[i], a.dim, 1.f);
      find_keys(found, a, a.v, s, item.key_head, key, count);
      lay_across(t.v_across, found, count, a.value_dim, a.pairs);
      for (int64_t first = 0; first < rows; first += kBlockRows)
        block_backward<kPrecisionOf<T>>(a, item, t, row, first, least(rows, first + kBlockRows), key, count, sums);
    }
    for (int64_t i = 0; i < rows; ++i)
      write_row(row_of<T>(a.dq, s.batch, s.first_row + row + i / group, item.key_head * group + i % group),
                t.dq + i * t.dim, a.dim, a.scale);
  }
}

// The sum of `count` rows of numbers that lie `apart` numbers apart.
template <class T>
HOTSWAP_INLINE void write_sum(T* to, const float* from, int64_t numbers, int64_t count, int64_t apart) {
  sweep(numbers, [&](int64_t i, auto part) HOTSWAP_LAMBDA {
    F total = load(from + i, part);
    for (int64_t n = 1; n < count; ++n) total += load(from + n * apart + i, part);
    store(to + i, total, part);
  });
}

template <class T>
static void write_gradients_of(const AttentionBackward& a, const Merge& m, const float* parts, int64_t apart) {
  const Sequence& s = a.sequences[m.sequence];
  const Sums sums = sums_of(a, s, const_cast<float*>(parts));
  for (int64_t key = 0; key < s.keys; ++key) {
    write_sum(row_of<T>(a.dk, s.key_batch, s.first_key + key, m.key_head), sums.dk + key * padded(a.dim), a.dim,
              m.slot_end - m.slot, apart);
    write_sum(row_of<T>(a.dv, s.key_batch, s.first_key + key, m.key_head), sums.dv + key * padded(a.value_dim),
              a.value_dim, m.slot_end - m.slot, apart);
  }
}

}  // namespace

void backward(const AttentionBackward& a, const Item& item, float* part, double* dsinks, float* scratch) {
  with_dtype(a.dtype, [&]<typename T>() { backward_of<T>(a, item, part, dsinks, scratch); });
}

void write_gradients(const AttentionBackward& a, const Merge& m, const float* parts, int64_t apart) {
  with_dtype(a.dtype, [&]<typename T>() { write_gradients_of<T>(a, m, parts, apart); });
}

}  // namespace attention::HOTSWAP_ISA
