// Forward of a tile of rows, key tile after key tile. Compiled once per ISA.
#include "kernels/attention/cpu/kernels.h"
#include "kernels/attention/cpu/scores.h"

namespace attention::HOTSWAP_ISA {
namespace {

// A tile's memory: what its rows carry along the keys, one tile of keys, the scores of one block of rows.
struct Tile {
  int64_t rows, dim, value_dim;  // padded dims
  float *q, *values;             // [rows, dim], [rows, value_dim]
  uint32_t* q_pairs;             // [rows, dim / 2], or null
  RowState* state;               // [rows]
  float *k, *v;                  // [dim of the problem, kKeysStride], [kTileKeys, value_dim]
  float *scores, *shrink;        // [kBlockRows, kKeysStride], [kBlockRows]

  Tile(const Attention& a, int64_t row_count, Scratch scratch)
      : rows(row_count), dim(padded(a.dim)), value_dim(padded(a.value_dim)) {
    q = scratch.take(rows * dim);
    values = scratch.take(rows * value_dim);
    q_pairs = scratch.take_pairs(a.pairs, rows * dim / 2);
    state = reinterpret_cast<RowState*>(scratch.take(rows * 2));
    k = scratch.take(a.dim * kKeysStride);
    v = scratch.take(kTileKeys * value_dim);
    scores = scratch.take(kBlockRows * kKeysStride);
    shrink = scratch.take(kBlockRows);
  }
};

// Rows [first, end) of the tile (row times head) over keys of which the tile's first is `key`.
template <Precision kPrecision>
static void block_forward(const Attention& a, const Item& item, const Tile& t, int64_t first, int64_t end, int64_t key,
                          int64_t count) {
  const Sequence& s = a.sequences[item.sequence];
  const int64_t group = a.group(), row = item.first + first / group, row_end = item.first + (end - 1) / group + 1;
  const Span all = keys_of(a, s, row, row_end), here = cut({all.first - key, all.end - key}, 0, count);
  if (here.empty()) return;
  const int64_t begin = here.first / kLanes * kLanes, stop = (here.end + kLanes - 1) / kLanes * kLanes;
  multiply_scores(t.scores + begin, Scored{t.q, t.q_pairs, t.dim, t.dim / 2}.from(first), t.k + begin, end - first,
                  stop - begin, a.dim, a.scale);
  for (int64_t i = first; i < end; ++i) {
    const int64_t at = item.first + i / group, head = item.key_head * group + i % group;
    const Span seen = keys_of(a, s, at), of_row = cut({seen.first - key, seen.end - key}, here.first, here.end);
    t.shrink[i - first] = weigh<kPrecision>(t.scores + (i - first) * kKeysStride, here.first, here.end, of_row.first,
                                            of_row.end, row_options(a, s, at, head, key), t.state[i]);
  }
  multiply<Into::kScaled>(t.values + first * t.value_dim, t.value_dim, {t.scores + here.first, kKeysStride, 1},
                          {t.v + here.first * t.value_dim, t.value_dim}, end - first, t.value_dim,
                          here.end - here.first, t.shrink);
}

template <class T>
static void forward_of(const Attention& a, const Item& item, float* scratch) {
  const Sequence& s = a.sequences[item.sequence];
  const int64_t group = a.group();
  const Tile t(a, (item.end - item.first) * group, {scratch});
  if (a.pairs)
    pair_rows<T>(t.q_pairs, a, a.q, s, item, item.first, item.end, a.dim);
  else
    widen_rows<T>(t.q, a, a.q, s, item, item.first, item.end, a.dim, a.scale);
  for (int64_t i = 0; i < t.rows * t.value_dim; ++i) t.values[i] = 0.f;
  for (int64_t i = 0; i < t.rows; ++i) t.state[i] = {-kInfinity, 0.f};
  const Span all = keys_of(a, s, item.first, item.end);
  const T* rows[kTileKeys];
  for (int64_t key = all.first; key < all.end; key += kTileKeys) {
    const int64_t count = least(kTileKeys, all.end - key);
    find_keys(rows, a, a.k, s, item.key_head, key, count);
    ask_for_rows(rows, count, a.dim);
    lay_across(t.k, rows, count, a.dim, a.pairs);
    find_keys(rows, a, a.v, s, item.key_head, key, count);
    ask_for_rows(rows, count, a.value_dim);
    for (int64_t i = 0; i < count; ++i) widen_row(t.v + i * t.value_dim, rows[i], a.value_dim, 1.f);
    for (int64_t first = 0; first < t.rows; first += kBlockRows)
      block_forward<kPrecisionOf<T>>(a, item, t, first, least(t.rows, first + kBlockRows), key, count);
  }
  for (int64_t i = 0; i < t.rows; ++i)
    finish_row<T>(a, s, item.first + i / group, item.key_head * group + i % group, t.state[i],
                  t.values + i * t.value_dim);
}

}  // namespace

void forward(const Attention& a, const Item& item, float* scratch) {
  with_dtype(a.dtype, [&]<typename T>() { forward_of<T>(a, item, scratch); });
}

}  // namespace attention::HOTSWAP_ISA
