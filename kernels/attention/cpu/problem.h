// One call of attention on the CPU, as its plan (plan.h), its kernels and the op share it; the formulas are
// attention.h's.
//
// All scores, sums and products are float32, the weights p too: they are not rounded before they multiply v. Where the
// CPU multiplies pairs of bfloat16, products of two numbers that are bfloat16 as they come are taken so, which is
// exact, and the backward rounds p and dx to bfloat16 before it multiplies them, as attention.h has it. Every output
// and gradient is rounded once. Sums go over the keys, and for dk and dv over the rows, in an order that depends on
// shapes alone: the same bits with any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/common/cpu/isa.h"

namespace attention::cpu {

struct Operand {  // [batch, rows, heads, numbers]
  void* data;
  Strides strides;
};

// Queries with the keys that they may see, and where both lie.
struct Sequence {
  int64_t batch, key_batch;      // entries of q and out; of k and v
  int64_t first_row, first_key;  // within them
  int64_t rows, keys;
  const int32_t* pages;  // null: the keys lie in one piece; else key j is row j % page of entry pages[j / page]
};

struct Attention {
  DType dtype;
  int64_t heads, key_heads, dim, value_dim;
  float scale, softcap;        // softcap 0: none
  int64_t left, right, chunk;  // kNoLimit; chunk 0: none. Causal: right is 0
  const float* sinks;          // [heads] or null
  const float* slopes;         // ALiBi's, [heads], of each sequence slopes_batch further; or null
  int64_t slopes_batch;
  Operand q, k, v, out;
  float* lse;                   // or null: nobody wants it
  int64_t lse_batch, lse_head;  // strides; a row's is 1
  int64_t page;                 // rows of a page
  bool pairs = false;           // by pairs of bfloat16 (common/cpu/pairs.h): q k, and all products of a backward
  const Sequence* sequences;

  int64_t group() const { return heads / key_heads; }
};

struct AttentionBackward : Attention {
  Operand dout, dq, dk, dv;
  const float* dlse;  // as lse, or null
};

// A thread's unit of work: rows of a sequence, each with all query heads of a group, or keys of one.
struct Item {
  int64_t sequence, key_head;
  int64_t first, end;  // rows, or keys
  int64_t slot;        // where its part of a sum goes; -1: nobody shares it
};
// Parts [slot, slot_end) of the sums of a sequence and key head.
struct Merge {
  int64_t sequence, key_head, slot, slot_end;
};

constexpr int64_t kPad = 16;        // numbers; the widest vector
constexpr int64_t kTileRows = 192;  // rows times heads of a group that share a tile of keys in float32
constexpr int64_t kTileKeys = 128;
constexpr int64_t kBlockRows = 48;   // of a tile, whose scores stay in the first cache
constexpr int64_t kFullRows = 96;    // the same in a backward where all see all keys: longer sums over the rows
constexpr int64_t kStreamRows = 16;  // up to so many, keys are read where they lie: memory is what such a call costs
constexpr int64_t kKept = int64_t{2} << 20;        // of keys laid out for a backward, numbers of float32 a thread
constexpr int64_t kKeysStride = kTileKeys + kPad;  // of scores, too; a power of two would share few lines of the cache

constexpr int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

// Rows of a sequence that make a tile, and how many with all heads of the group.
inline int64_t tile_positions(const Attention& a) { return a.group() < kTileRows ? kTileRows / a.group() : 1; }
inline int64_t tile_rows(const Attention& a) { return tile_positions(a) * a.group(); }

// Numbers of float32 that a thread needs, and a part of a sum.
inline int64_t pair_numbers(const Attention& a, int64_t dim) { return a.pairs ? tile_rows(a) * padded(dim) / 2 : 0; }
inline int64_t forward_scratch(const Attention& a) {
  return tile_rows(a) * (padded(a.dim) + padded(a.value_dim) + 2) + pair_numbers(a, a.dim) + a.dim * kKeysStride +
         kTileKeys * padded(a.value_dim) + kBlockRows * (kKeysStride + 1) + kPad * 9;
}
inline int64_t stream_scratch(const Attention& a) { return kStreamRows * (padded(a.dim) + kTileKeys + 1) + kPad * 8; }
inline int64_t stream_part(const Attention& a) { return kStreamRows * (padded(a.value_dim) + 2); }
// A backward's key tile as products want it: keys and values across, and keys as rows, by numbers or by pairs.
inline int64_t laid_tile(const Attention& a) {
  const int64_t numbers = a.pairs ? 2 : 1;
  return ((a.dim + a.value_dim) * kKeysStride + kTileKeys * padded(a.dim)) / numbers;
}
// How many of them a thread keeps for the tiles of rows to come, whose keys are mostly the same.
inline int64_t kept_tiles(const Attention& a, int64_t keys) {
  return std::clamp<int64_t>(kKept / (laid_tile(a) + 1), 1, keys / kTileKeys + 2);
}
inline int64_t backward_scratch(const Attention& a, int64_t keys) {
  const int64_t both = padded(a.dim) + padded(a.value_dim);
  const int64_t of_rows = a.pairs ? (tile_rows(a) + 1) * both + 3 * (kFullRows / 2) * kKeysStride : tile_rows(a) * both;
  return of_rows + tile_rows(a) * (padded(a.dim) + 2) + kept_tiles(a, keys) * (laid_tile(a) + 2) +
         2 * kFullRows * kKeysStride + kPad * 16;
}
inline int64_t backward_part(const Attention& a, int64_t keys) { return keys * (padded(a.dim) + padded(a.value_dim)); }

// What a backward's unit of work writes besides dq, and a thread's memory.
struct BackwardMemory {
  float* part;     // dk [keys, dim] and dv [keys, value_dim], padded
  double* dsinks;  // [group], or null: no sinks
  float* scratch;
  bool same_keys;  // the unit before this one in this scratch was of the same sequence and key head
};

struct Span;  // of keys: span.h

struct Table {
  void (*forward)(const Attention& a, const Item& rows, float* scratch);
  // Few rows: keys [first, end) into part `slot` of parts, and all parts into out and lse.
  void (*stream)(const Attention& a, const Item& keys, float* parts, float* scratch);
  void (*merge)(const Attention& a, const Merge& merge, float* parts);
  // dq of these rows, and what they give dk, dv and dsinks.
  void (*backward)(const AttentionBackward& a, const Item& rows, const BackwardMemory& memory);
  // dk and dv from their parts, which lie `apart` numbers apart; seen[part]: the keys that are in it.
  void (*write_gradients)(const AttentionBackward& a, const Merge& merge, const float* parts, int64_t apart,
                          const Span* seen);
};

}  // namespace attention::cpu

namespace attention {
using CpuTable = cpu::Table;
HOTSWAP_ISA_TABLES(CpuTable)
}  // namespace attention
