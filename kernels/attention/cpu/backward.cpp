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

// What is multiplied as pairs of bfloat16; "down": a pair is of two rows, or of two keys, at the same number.
struct TilePairs {
  uint32_t *q, *dout;            // [rows, dim / 2], [rows, value_dim / 2]; null: nothing here is used
  uint32_t *q_down, *dout_down;  // [rows / 2, dim], [rows / 2, value_dim]
  uint32_t *p_down, *dx_down;    // [kFullRows / 2, kKeysStride]
  uint32_t* dx;                  // [kFullRows, kKeysStride / 2]
};

// Keys of a tile, laid out.
struct Keys {
  float *k_across, *v_across;  // [number or pair, kKeysStride]
  float* k;                    // [kTileKeys, dim], without pairs
  uint32_t* k_down;            // [kTileKeys / 2, dim], instead of it
};

struct Tile {
  int64_t dim, value_dim;   // padded
  float *q, *dout;          // [rows, dim], [rows, value_dim]: without pairs
  TilePairs pairs{};        // instead of them
  float* dq;                // [rows, dim]
  float *lse, *delta;       // [rows]
  float *scores, *dscores;  // [kFullRows, kKeysStride]
  int64_t kept;
  int64_t* laid;  // [kept]: which tile's keys are there, from which key on, or -1
  float* keys;    // [kept, laid_tile]

  Tile(const Attention& a, int64_t all_keys, Scratch scratch, bool same_keys)
      : dim(padded(a.dim)), value_dim(padded(a.value_dim)) {
    kept = kept_tiles(a, all_keys);
    const int64_t rows = tile_rows(a), halves = (rows + 1) / 2, wide = a.pairs ? 0 : 1;
    q = scratch.take(wide * rows * dim);
    dout = scratch.take(wide * rows * value_dim);
    pairs.q = scratch.take_pairs(a.pairs, rows * dim / 2);
    pairs.dout = scratch.take_pairs(a.pairs, rows * value_dim / 2);
    pairs.q_down = scratch.take_pairs(a.pairs, halves * dim);
    pairs.dout_down = scratch.take_pairs(a.pairs, halves * value_dim);
    pairs.p_down = scratch.take_pairs(a.pairs, kFullRows / 2 * kKeysStride);
    pairs.dx_down = scratch.take_pairs(a.pairs, kFullRows / 2 * kKeysStride);
    pairs.dx = scratch.take_pairs(a.pairs, kFullRows * kKeysStride / 2);
    dq = scratch.take(rows * dim);
    lse = scratch.take(rows);
    delta = scratch.take(rows);
    scores = scratch.take(kFullRows * kKeysStride);
    dscores = scratch.take(kFullRows * kKeysStride);
    keys = scratch.take(kept * laid_tile(a));
    laid = reinterpret_cast<int64_t*>(scratch.take(kept * int64_t(sizeof(int64_t) / sizeof(float))));
    for (int64_t i = 0; i < kept && !same_keys; ++i) laid[i] = -1;
  }
  Keys keys_at(const Attention& a, int64_t slot) const {
    float* const from = keys + slot * laid_tile(a);
    const int64_t each = kKeysStride / (a.pairs ? 2 : 1);
    float* const rows = from + (a.dim + a.value_dim) * each;
    return {from, from + a.dim * each, rows, reinterpret_cast<uint32_t*>(rows)};
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

// Rows of p and dx, two that follow each other or a last one, as pairs: the keys [begin, end), multiples of kLanes.
static void pair_weights(const Tile& t, int64_t row, bool two, int64_t begin, int64_t end) {
  static const float kZeros[kTileKeys] = {};
  const int64_t at = row * kKeysStride + begin, down = row / 2 * kKeysStride + begin, count = end - begin;
  const float *p = t.scores + at, *dx = t.dscores + at;
  round_interleaved(t.pairs.p_down + down, p, two ? p + kKeysStride : kZeros, count);
  round_interleaved(t.pairs.dx_down + down, dx, two ? dx + kKeysStride : kZeros, count);
  round_beside(t.pairs.dx + at / 2, dx, count);
  if (two) round_beside(t.pairs.dx + (at + kKeysStride) / 2, dx + kKeysStride, count);
}

HOTSWAP_INLINE Right as_right(const uint32_t* pairs, int64_t step) {
  return {reinterpret_cast<const float*>(pairs), step};
}

// Rows [first, end) of the tile that begins at row `tile_row`, with the keys [key, key + count).
struct Block {
  int64_t tile_row, first, end, key, count;
};

template <Precision kPrecision>
static void block_backward(const AttentionBackward& a, const Item& item, const Tile& t, const Block& block,
                           const Keys& keys, const Sums& sums) {
  const Sequence& s = a.sequences[item.sequence];
  const auto [tile_row, first, end, key, count] = block;
  const int64_t group = a.group(), rows = end - first;
  const Span all = keys_of(a, s, tile_row + first / group, tile_row + (end - 1) / group + 1);
  const Span here = cut({all.first - key, all.end - key}, 0, count);
  if (here.empty()) return;
  const int64_t begin = here.first / kLanes * kLanes, stop = (here.end + kLanes - 1) / kLanes * kLanes;
  multiply_scores(t.scores + begin, Scored{t.q, t.pairs.q, t.dim, t.dim / 2}.from(first), keys.k_across + begin, rows,
                  stop - begin, a.dim, a.scale);
  multiply_scores(t.dscores + begin, Scored{t.dout, t.pairs.dout, t.value_dim, t.value_dim / 2}.from(first),
                  keys.v_across + begin, rows, stop - begin, a.value_dim, 1.f);
  for (int64_t i = first; i < end; ++i) {
    const int64_t row = tile_row + i / group, head = item.key_head * group + i % group;
    const Span of_row = keys_of(a, s, row);
    // A row that sees no key, or none of a finite score, has lse -infinity and no gradient.
    const Span seen =
        t.lse[i] == -kInfinity ? Span{0, 0} : cut({of_row.first - key, of_row.end - key}, here.first, here.end);
    weigh_back<kPrecision>(t.scores + (i - first) * kKeysStride, t.dscores + (i - first) * kKeysStride, begin, stop,
                           seen, row_options(a, s, row, head, key), t.lse[i], t.delta[i]);
    if (a.pairs && ((i - first) % 2 == 1 || i + 1 == end))
      pair_weights(t, (i - first) / 2 * 2, (i - first) % 2 == 1, begin, stop);
  }
  const int64_t seen = here.end - here.first, at = key + here.first;
  if (a.pairs) {
    const int64_t from = here.first / 2, steps = (here.end + 1) / 2 - from, halves = (rows + 1) / 2;
    multiply_pairs<Into::kAdd>(sums.dv + at * t.value_dim, t.value_dim, {t.pairs.p_down + here.first, 1, kKeysStride},
                               as_right(t.pairs.dout_down + first / 2 * t.value_dim, t.value_dim), seen, t.value_dim,
                               halves, 1.f);
    multiply_pairs<Into::kAdd>(sums.dk + at * t.dim, t.dim, {t.pairs.dx_down + here.first, 1, kKeysStride},
                               as_right(t.pairs.q_down + first / 2 * t.dim, t.dim), seen, t.dim, halves, a.scale);
    return multiply_pairs<Into::kAdd>(t.dq + first * t.dim, t.dim, {t.pairs.dx + from, kKeysStride / 2, 1},
                                      as_right(keys.k_down + from * t.dim, t.dim), rows, t.dim, steps, 1.f);
  }
  const float *q = t.q + first * t.dim, *dout = t.dout + first * t.value_dim;
  multiply<Into::kAdd>(sums.dv + at * t.value_dim, t.value_dim, {t.scores + here.first, 1, kKeysStride},
                       {dout, t.value_dim}, seen, t.value_dim, rows);
  multiply<Into::kAdd>(sums.dk + at * t.dim, t.dim, {t.dscores + here.first, 1, kKeysStride}, {q, t.dim}, seen, t.dim,
                       rows);
  multiply<Into::kAdd>(t.dq + first * t.dim, t.dim, {t.dscores + here.first, kKeysStride, 1},
                       {keys.k + here.first * t.dim, t.dim}, rows, t.dim, seen);
}

// Every two rows of `numbers` that lie a row of pairs behind each other, down.
template <class T>
static void pair_rows_down(uint32_t* to, const uint32_t* pairs, int64_t rows, int64_t numbers) {
  if constexpr (__is_same(T, BFloat16)) {
    const int64_t wide = padded(numbers);
    const auto* at = reinterpret_cast<const BFloat16*>(pairs);
    for (int64_t i = 0; i < rows; i += 2, to += wide)
      pair_down(to, at + i * wide, i + 1 < rows ? at + (i + 1) * wide : nullptr, numbers);
  }
}

// q, dout, lse and D of the tile's rows; what they give dsinks.
template <class T>
static void begin_tile(const AttentionBackward& a, const Item& item, const Tile& t, int64_t row, int64_t row_end,
                       double* dsinks) {
  const Sequence& s = a.sequences[item.sequence];
  const int64_t group = a.group(), rows = (row_end - row) * group;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t of = s.first_row + row + i / group, head = item.key_head * group + i % group;
    ask_for(row_of<const T>(a.q, s.batch, of, head), a.dim);
    ask_for(row_of<const T>(a.dout, s.batch, of, head), a.value_dim);
    ask_for(row_of<const T>(a.out, s.batch, of, head), a.value_dim);
  }
  if (a.pairs) {
    pair_rows<T>(t.pairs.q, a, a.q, s, item, row, row_end, a.dim);
    pair_rows<T>(t.pairs.dout, a, a.dout, s, item, row, row_end, a.value_dim);
    pair_rows_down<T>(t.pairs.q_down, t.pairs.q, rows, a.dim);
    pair_rows_down<T>(t.pairs.dout_down, t.pairs.dout, rows, a.value_dim);
  } else {
    widen_rows<T>(t.q, a, a.q, s, item, row, row_end, a.dim, a.scale);
    widen_rows<T>(t.dout, a, a.dout, s, item, row, row_end, a.value_dim, 1.f);
  }
  for (int64_t i = 0; i < rows * t.dim; ++i) t.dq[i] = 0.f;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t of = row + i / group, head = item.key_head * group + i % group;
    const int64_t at = s.batch * a.lse_batch + head * a.lse_head + s.first_row + of;
    const T* out = row_of<const T>(a.out, s.batch, s.first_row + of, head);
    const T* dout = row_of<const T>(a.dout, s.batch, s.first_row + of, head);
    t.lse[i] = a.lse[at];
    t.delta[i] = sweep_sum(a.value_dim, [&](int64_t c, auto part)
                                            HOTSWAP_LAMBDA { return load(out + c, part) * load(dout + c, part); }) -
                 (a.dlse == nullptr ? 0.f : a.dlse[at]);
    if (dsinks != nullptr) dsinks[i % group] -= double(exp(a.sinks[head] - t.lse[i])) * double(t.delta[i]);
  }
}

// The keys as rows, which dx multiplies.
template <class T>
static void lay_down(const Attention& a, const Tile& t, const Keys& to, const T* const* rows, int64_t count) {
  if constexpr (__is_same(T, BFloat16)) {
    if (a.pairs) {
      for (int64_t i = 0; i < count; i += 2)
        pair_down(to.k_down + i / 2 * t.dim, rows[i], i + 1 < count ? rows[i + 1] : nullptr, a.dim);
      return;
    }
  }
  for (int64_t i = 0; i < count; ++i) widen_row(to.k + i * t.dim, rows[i], a.dim, 1.f);
}

// The tile of keys from `key` on laid out, also those that only rows to come see: as it was for rows before these, or
// anew. Where all tiles of keys can be kept they take turns, else the first ones stay.
template <class T>
static Keys keys_of_tile(const Attention& a, const Item& item, const Tile& t, int64_t key, bool all) {
  const Sequence& s = a.sequences[item.sequence];
  const int64_t n = key / kTileKeys, slot = all ? n % t.kept : least(n, t.kept - 1);
  const Keys keys = t.keys_at(a, slot);
  if (t.laid[slot] == key) return keys;
  t.laid[slot] = key;
  const int64_t count = least(kTileKeys, s.keys - key);
  const T* rows[kTileKeys];
  find_keys(rows, a, a.k, s, item.key_head, key, count);
  ask_for_rows(rows, count, a.dim);
  lay_across(keys.k_across, rows, count, a.dim, a.pairs);
  lay_down(a, t, keys, rows, count);
  find_keys(rows, a, a.v, s, item.key_head, key, count);
  ask_for_rows(rows, count, a.value_dim);
  lay_across(keys.v_across, rows, count, a.value_dim, a.pairs);
  return keys;
}

// Where a block ends: all its rows where all see all keys, fewer where products would be of keys that nobody sees.
static int64_t end_of(const Attention& a, const Sequence& s, const Block& most) {
  const int64_t least_end = keys_of(a, s, most.tile_row + most.first / a.group()).end;
  const int64_t max_first = keys_of(a, s, most.tile_row + (most.end - 1) / a.group()).first;
  const bool all = max_first <= most.key && least_end >= most.key + most.count;
  return all ? most.end : least(most.end, most.first + kBlockRows);
}

template <class T>
static void backward_of(const AttentionBackward& a, const Item& item, const BackwardMemory& memory) {
  const Sequence& s = a.sequences[item.sequence];
  const int64_t group = a.group(), max_rows = tile_positions(a);
  const Tile t(a, s.keys, {memory.scratch}, memory.same_keys);
  const Sums sums = sums_of(a, s, memory.part);
  const Span of_unit = keys_of(a, s, item.first, item.end);
  for (int64_t i = of_unit.first * t.dim; i < of_unit.end * t.dim; ++i) sums.dk[i] = 0.f;
  for (int64_t i = of_unit.first * t.value_dim; i < of_unit.end * t.value_dim; ++i) sums.dv[i] = 0.f;
  for (int64_t row = item.first; row < item.end; row += max_rows) {
    const int64_t row_end = least(item.end, row + max_rows), rows = (row_end - row) * group;
    begin_tile<T>(a, item, t, row, row_end, memory.dsinks);
    const Span all = keys_of(a, s, row, row_end);
    const int64_t from = all.first / kTileKeys * kTileKeys;  // the same tiles for all rows
    for (int64_t key = from; key < all.end; key += kTileKeys) {
      const int64_t count = least(kTileKeys, all.end - key);
      const Keys keys = keys_of_tile<T>(a, item, t, key, all.end - from <= t.kept * kTileKeys);
      Block block{.tile_row = row, .first = 0, .end = 0, .key = key, .count = count};
      for (; block.first < rows; block.first = block.end) {
        block.end = least(rows, block.first + kFullRows);
        block.end = end_of(a, s, block);
        block_backward<kPrecisionOf<T>>(a, item, t, block, keys, sums);
      }
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
    F total{};
    for (int64_t n = 0; n < count; ++n) total += load(from + n * apart + i, part);
    store(to + i, total, part);
  });
}

template <class T>
static void write_gradients_of(const AttentionBackward& a, const Merge& m, const float* parts, int64_t apart,
                               const Span* seen) {
  const Sequence& s = a.sequences[m.sequence];
  const Sums sums = sums_of(a, s, const_cast<float*>(parts));
  int64_t first = 0, end = 0;  // parts that have this key: both ends of what they have grow with the part
  for (int64_t key = 0; key < s.keys; ++key) {
    while (end < m.slot_end - m.slot && seen[end].first <= key) ++end;
    while (first < end && seen[first].end <= key) ++first;
    write_sum(row_of<T>(a.dk, s.key_batch, s.first_key + key, m.key_head),
              sums.dk + first * apart + key * padded(a.dim), a.dim, end - first, apart);
    write_sum(row_of<T>(a.dv, s.key_batch, s.first_key + key, m.key_head),
              sums.dv + first * apart + key * padded(a.value_dim), a.value_dim, end - first, apart);
  }
}

}  // namespace

void backward(const AttentionBackward& a, const Item& item, const BackwardMemory& memory) {
  with_dtype(a.dtype, [&]<typename T>() { backward_of<T>(a, item, memory); });
}

void write_gradients(const AttentionBackward& a, const Merge& m, const float* parts, int64_t apart, const Span* seen) {
  with_dtype(a.dtype, [&]<typename T>() { write_gradients_of<T>(a, m, parts, apart, seen); });
}

}  // namespace attention::HOTSWAP_ISA
