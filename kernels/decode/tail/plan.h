// How one launch does what follows attention in a layer: the products o, gate with up, and down. Host and device see
// this.
#pragma once

#include <algorithm>

#include "kernels/decode/products.h"

namespace decode::cuda {

using kernels::gpu::kMostWeights;

constexpr int kProducts = 3;
constexpr int kChunk = 1024, kPieceRows = 8;   // columns and rows of a piece of weights
constexpr int kPieceStride = kChunk * 2 + 64;  // bytes between its rows in shared memory, against bank conflicts
constexpr int kPieceBytes = kPieceRows * kPieceStride;
constexpr int kMostPieces = 12, kFewestPieces = 3, kInFlight = 4;
constexpr int64_t kSumsBytes = 32 << 10;    // of shared memory: the warps' sums of a product
constexpr int64_t kFixedBytes = 2 << 10;    // at least what is of a fixed size
constexpr int64_t kBesideBytes = 40 << 10;  // for the launches before and after to be there, too

// A product, so that a block finds its part of it in few steps.
struct Product {
  const void* x;         // [rows, in]
  void* out;             // [rows, wide]
  const void* residual;  // the same, or null
  const void *weight[2], *bias[2];
  int64_t stride[2];  // bytes between a weight's rows
  int in, wide;
  int each, more, turn;  // every block has `each` tiles (or pairs), the first `more` from block `turn` on one more
  bool paired, normed;   // gate beside up
};

struct Tail {
  Product products[kProducts];
  const void* norm;  // [hidden]
  float eps;
  int rows, hidden;
  Act act;
  int pieces;       // of the ring
  int in_flight;    // pieces that were asked for and have not come
  int share_shift;  // 2^this warps share a row of x
  int x_bytes;      // of shared memory, for rows of x
#ifdef DECODE_STAMPS
  unsigned long long* stamps;
#endif
};

inline Product product_of(const FewRows& a, int blocks, int& turn) {
  Product p{.x = a.x, .out = a.out, .residual = a.residual, .in = a.in, .wide = a.w[0].rows};
  p.paired = a.act != FewRowsAct::kNone, p.normed = a.norm != nullptr;
  for (int i = 0; i < a.weights; ++i)
    p.weight[i] = a.w[i].data, p.bias[i] = a.w[i].bias, p.stride[i] = a.w[i].stride * 2;
  const int tiles = (p.wide + kPieceRows - 1) / kPieceRows;
  p.each = tiles / blocks, p.more = tiles % blocks, p.turn = turn;
  turn = (turn + p.more) % blocks;
  return p;
}

inline int64_t tail_bytes(const Tail& t) {
  return kSumsBytes + t.x_bytes + int64_t{t.hidden} * 2 + int64_t{t.pieces} * kPieceBytes;
}

// shared: bytes that a block may have.
inline Tail plan_tail(const Layer& a, int blocks, int64_t shared) {
  Tail t{.norm = a.post_norm, .eps = a.eps, .rows = int(a.rows), .hidden = int(a.hidden), .act = a.act};
  int turn = 0, index = 0;
  int64_t widest = 0;
  for (const FewRows& product : {o_of(a), gated_of(a), down_of(a)}) {
    t.products[index++] = product_of(product, blocks, turn);
    widest = std::max<int64_t>(widest, product.in);
  }
  t.x_bytes = int(std::min<int64_t>(a.rows * (widest + kernels::gpu::kFewPad) * 2, 1 << 20));
  const auto pieces = [&](int64_t room) {
    return int(std::clamp<int64_t>((room - kFixedBytes - tail_bytes(t)) / kPieceBytes, 0, kMostPieces));
  };
  const int beside = pieces(shared - kBesideBytes);
  t.pieces = beside >= kInFlight ? beside : pieces(shared);
  t.in_flight = std::min(t.pieces, kInFlight);
  t.share_shift = a.rows > 8 ? 0 : a.rows > 4 ? 1 : a.rows > 2 ? 2 : a.rows > 1 ? 3 : 4;
  return t;
}
inline bool fits_tail(const Tail& t) { return t.pieces >= kFewestPieces; }

}  // namespace decode::cuda
