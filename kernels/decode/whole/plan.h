// How one launch does a whole layer: what it takes besides the layer, and whether it can. Host and device see this.
#pragma once

#include <algorithm>

#include "kernels/decode/products.h"

namespace decode::cuda {

using kernels::gpu::kMostWeights;

constexpr int kProducts = 4;                   // q, k and v; o; gate and up; down
constexpr int kChunk = 1024, kPieceRows = 8;   // columns and rows of a piece of weights
constexpr int kPieceStride = kChunk * 2 + 64;  // bytes between its rows in shared memory, against bank conflicts
constexpr int kPieceBytes = kPieceRows * kPieceStride;
constexpr int kMostPieces = 12, kFewestPieces = 3;
constexpr int kInFlight = 2;
constexpr int kFixedBytes = 3 << 10;  // at least what is of a fixed size in shared memory
constexpr int kSumsBytes = 32 << 10;  // of shared memory: the warps' sums of a product
constexpr int kMostParts = 8;         // runs of keys, of all rows together, whose sums every block reads
constexpr int kMostToldRows = 2;
constexpr int kMostTold = 16 << 10;  // numbers of a product's results, where they are told (told.cuh)
constexpr int kWholeGroup = 4;       // query heads that a block takes of a key head

// One of the products, so that a block finds its part of it in few steps.
struct Product {
  const void* x;         // [rows, in]
  void* out;             // [rows, wide]
  const void* residual;  // the same, or null
  const void *weight[kMostWeights], *bias[kMostWeights];
  int64_t stride[kMostWeights];                                           // bytes between a weight's rows
  int rows[kMostWeights], first_tile[kMostWeights], first[kMostWeights];  // its outputs, and where they begin
  int in, wide;
  int each, more, turn;  // every block has `each` tiles (or pairs), the first `more` from block `turn` on one more
  bool paired, normed;   // gate beside up
  float eps;
};

struct Whole {
  Layer a;
  Product products[kProducts];
  int pieces;       // of the ring
  int in_flight;    // pieces that were asked for and have not come
  int most_splits;  // runs of a row's keys, a power of two
  int chunks;       // of a key head's query heads
  int share_shift;  // 2^this warps share a row
  int x_bytes;      // of shared memory, for rows of x
  bool told;        // the products' results go to other blocks by told.cuh, not behind barriers
  bool early;       // weights may be read before the launch before this one is done
  float* parts;     // [rows, heads, splits, head_dim]: the weighted values of each run of keys
  float* stats;     // [rows, heads, splits, 2]: their largest exponent and the weights' sum
#ifdef DECODE_STAMPS
  unsigned long long* stamps;
#endif
};

inline Product product_of(const FewRows& a, int blocks, int& turn) {
  constexpr int kAbsent = 1 << 30;
  Product p{.x = a.x, .out = a.out, .residual = a.residual, .in = a.in, .wide = int(a.out_stride)};
  p.paired = a.act != FewRowsAct::kNone, p.normed = a.norm != nullptr, p.eps = a.eps;
  int tiles = 0, outputs = 0;
  for (int i = 0; i < kMostWeights; ++i) {
    const bool there = i < a.weights;
    p.first_tile[i] = there ? tiles : kAbsent, p.first[i] = outputs;
    if (!there) continue;
    p.weight[i] = a.w[i].data, p.bias[i] = a.w[i].bias, p.stride[i] = a.w[i].stride * 2, p.rows[i] = a.w[i].rows;
    tiles += (a.w[i].rows + kPieceRows - 1) / kPieceRows, outputs += a.w[i].rows;
  }
  if (p.paired) tiles /= 2;
  p.each = tiles / blocks, p.more = tiles % blocks, p.turn = turn;
  turn = (turn + p.more) % blocks;
  return p;
}

// Numbers that parts and stats have room for.
inline int64_t whole_room(const Layer& a) {
  return a.rows > kMostParts / 2 ? 0 : a.heads * kMostParts * (a.head_dim + 2);
}
inline int64_t whole_attention_bytes(const Layer& a) {
  const int64_t group = a.heads / a.kv_heads <= 2 ? 2 : kWholeGroup;
  return (group * (17 * a.head_dim + 32) + 6 * a.head_dim) * int64_t{sizeof(float)};
}
inline int64_t whole_bytes(const Whole& w) {
  return kSumsBytes + w.x_bytes + 2 * w.a.hidden * 2 + int64_t{w.pieces} * kPieceBytes;
}

// shared: bytes that a block may have. pieces is below kFewestPieces where there is no room for rows of x.
inline Whole plan_whole(const Layer& a, int sms, int64_t shared) {
  Whole w{.a = a};
  int turn = 0, index = 0;
  for (const FewRows& product : {qkv_of(a), o_of(a), gated_of(a), down_of(a)})
    w.products[index++] = product_of(product, sms, turn);
  int64_t widest = 0;
  for (const Product& product : w.products) widest = std::max<int64_t>(widest, product.in);
  const int64_t x = a.rows * (widest + kernels::gpu::kFewPad) * 2;
  w.x_bytes = int(std::min<int64_t>(std::max(x, whole_attention_bytes(a) - kSumsBytes), 1 << 20) / 16 * 16 + 16);
  w.pieces = 0;
  w.pieces = int(std::clamp<int64_t>((shared - whole_bytes(w)) / kPieceBytes, 0, kMostPieces));
  w.in_flight = std::min(w.pieces, kInFlight);
  const int64_t group = a.heads / a.kv_heads;
  w.chunks = int((group + kWholeGroup - 1) / kWholeGroup);
  const int64_t heads = a.rows * a.kv_heads * w.chunks;
  for (w.most_splits = 1; w.most_splits * 2 * a.rows <= kMostParts && w.most_splits * 2 * heads <= sms;)
    w.most_splits *= 2;
  w.share_shift = a.rows > 8 ? 0 : a.rows > 4 ? 1 : a.rows > 2 ? 2 : a.rows > 1 ? 3 : 4;
  int64_t told = 0;
  for (const Product& product : w.products) told = std::max<int64_t>(told, a.rows * product.wide);
  w.told = a.rows <= kMostToldRows && told <= kMostTold;
  w.parts = static_cast<float*>(a.room);
  w.stats = w.parts == nullptr ? nullptr : w.parts + a.heads * kMostParts * a.head_dim;
  return w;
}
inline bool fits_whole(const Whole& w) { return w.pieces >= kFewestPieces; }

}  // namespace decode::cuda
