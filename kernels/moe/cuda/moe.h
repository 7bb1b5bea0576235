// The same on a GPU. Launches on `stream` of the current device; errors are thrown; nothing waits for the device, and
// grids depend on sizes alone, so that a captured graph may be replayed with another routing.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/moe/moe.h"

namespace moe::cuda {

using kernels::Stream;

// ---- index.cu: the stable counting sort
struct alignas(16) Hit {  // an expert that has assignments, and which slots it has
  int32_t expert, begin, end;
};
struct Sort {
  const void* index;  // [S] int64 or int32
  bool index64;
  int32_t *order, *slots, *offsets;
  int32_t* counts;  // [sort_counts()]
  // [1 + max_hits()] where products want them, or null. The first one's expert is how many there are, and its other
  // two are zeros: chunks of either product that blocks have asked for.
  Hit* hits;
  int64_t assignments, experts;
};
int64_t sort_counts(int64_t assignments, int64_t experts);
void sort(const Sort& s, Stream stream);

// ---- rows.cu
// A = act(h) of all slots, or dA' -> A', dh, dscores. a.ds is not used; dscores [S] must be zeros: those of skipped
// assignments stay so. dy and b2: where experts have a bias b2, whose share of the scores' gradient they make.
struct Down {
  const void *dy, *b2;
  int64_t dy_stride;
  void* dscores;
};
void activate(const Activation& a, Stream stream);
void activate_backward(const Activation& a, const Down& d, Stream stream);
// y[t] = sum over j of s_tj rows[slot of t, j]; scores null: 1.
void combine(const Problem& p, const Index& index, const void* scores, const void* rows, void* y, Stream stream);
// db[e] = sum over an expert's slots of rows[slot], or with `tokens` of s rows[t of slot]; scores null: 1.
struct BiasGradient {
  const void* rows;
  int64_t stride, cols;
  bool tokens;
  const void* scores;
  void* db;
};
void bias_gradient(const Problem& p, const Index& index, const BiasGradient& b, Stream stream);
void scale_rows(const Problem& p, const Index& index, const void* scores, void* rows, int64_t cols, Stream stream);

// ---- products: y[slot] = rows of slot times W of its expert (+ bias)
struct Product {
  Problem p;
  Index index;
  Source rows;
  const void* w;  // [E, out, rows.cols], or by_inputs [E, rows.cols, out]
  bool by_inputs;
  const void* bias;  // [E, out] or null
  void* y;           // [S, out]
  int64_t out;
  Hit* hits = nullptr;         // where sort() found them, whose launch may be the last but one; for one product of each
  bool after_product = false;  // the launch before makes the rows, and reads all else that this one does
};
// The same with the activation: y is h, or null where nobody wants it; a [S, I].
bool can_activate(const Product& up);
void multiply_and_activate(const Product& up, void* a, Stream stream);
// dw[e] = left^T right over the expert's slots: [left.cols, right.cols].
struct WeightGradient {
  Problem p;
  Index index;
  Source left, right;
  void* dw;
};
void multiply(const Product& a, Stream stream);
void multiply(const WeightGradient& a, Stream stream);

// sm80_products_few.cu: few tokens, weights by rows.
constexpr int64_t kFewTokens = 64;
bool want_hits(const Problem& p);  // whether they want to be told the experts that are hit
inline int64_t max_hits(const Problem& p) { return p.assignments() < p.experts ? p.assignments() : p.experts; }
bool few_take(const Product& a);
void multiply_few_rows(const Product& a, void* activated, Stream stream);  // activated: null, or where A goes
// sm80_decode.cu: all of forward for a handful of tokens, weights by rows.
struct Decode {
  Problem p;
  const void *x, *index, *scores;  // index [S] int64 or int32
  int64_t x_stride;
  bool index64;
  const void *w_up, *b_up, *w_down, *b_down;  // biases: or null
  const int32_t* slots;                       // with h
  void *h, *a, *y;                            // h: or null; a [S, I]: scratch, in the order of assignments
};
bool decode_takes(const Decode& d);
void decode(const Decode& d, Stream stream);
// sm90_decode_one.cu: the same of one token by the TMA.
bool one_token_takes(const Decode& d);
void one_token(const Decode& d, Stream stream);
// sm80_products.cu: any sizes and types, sm_75 on. sm90_products.cu: sm_90a, 16 bits, whole 16-byte vectors.
void multiply_tiles(const Product& a, Stream stream);
void multiply_tiles(const WeightGradient& a, Stream stream);
bool hopper_takes(const Product& a);
bool hopper_takes(const WeightGradient& a);
void multiply_hopper(const Product& a, Stream stream);
bool hopper_activates(const Product& a);  // two activations are built; the others go through h
void activate_hopper(const Product& a, void* activated, Stream stream);
void multiply_hopper(const WeightGradient& a, Stream stream);

}  // namespace moe::cuda
