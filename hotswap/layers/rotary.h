// Rotary position embedding: tables of cos and sin, and the rotation of queries and keys.
#pragma once

#include <mutex>
#include <vector>

#include "hotswap/layers/rope.h"
#include "hotswap/layers/slot.h"

namespace hotswap {

// rotary/1. q: [batch, heads, time, head_dim], k: [batch, kv_heads, time, head_dim], cos, sin: [1 or batch, time,
// rotary_dim]
using RotaryForward = std::tuple<Tensor, Tensor>(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                                 int64_t rotary_dim, bool interleaved);

namespace stock {
std::tuple<Tensor, Tensor> rotary(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                  int64_t rotary_dim, bool interleaved);
}  // namespace stock

// Where the tokens of one forward stand. Without `ids`: start, start + 1, ..., the same in every row.
struct Positions {
  int64_t start = 0, length = 0;
  Tensor ids = {};    // [1 or batch, length] int64, or undefined
  int64_t below = 0;  // every one of ids is, where that is known: in a cache of a fixed size, and in a step
  // [batch], or empty: rows are sequences of their own, with frequencies for these lengths where their type depends on
  // one. Else all rows have those of the batch's longest, as in transformers.
  std::vector<int64_t> lengths = {};
  bool each_row =
      false;  // as with `lengths`, which are ids + 1 here: one token a row, at a position that only the device knows
};

struct RotaryTables {
  Tensor cos, sin;  // [1 or batch, length, dim], both halves
};

// Tables depend on the positions of their call only. transformers' module remembers, for the types dynamic and
// longrope, the longest sequence that it has seen, so that a request there may change the next one's answer; here
// requests of several threads share one model.
class RotaryEmbedding {
 public:
  explicit RotaryEmbedding(RopeParameters rope);
  RotaryTables tables(const Positions& positions, at::ScalarType dtype, at::Device device) const;
  // The tables of every single position below `below` or more, cos and sin side by side: [positions, 2 dim]; undefined
  // where they depend on more than the position.
  Tensor rows(int64_t below, at::ScalarType dtype, at::Device device) const;
  static RotaryTables halves(const Tensor& row);  // [1, 1, 2 dim] of them

 private:
  struct Inverses {
    Tensor original;   // [dim / 2] float32
    Tensor stretched;  // longrope's beyond its original length; else undefined
  };
  bool depends_on_length() const { return rope_.type == "dynamic" || rope_.type == "longrope"; }
  Inverses inverses(at::Device device) const;
  Tensor inverse_of(const Tensor& lengths) const;
  Tensor inverse_for(const Positions& positions, at::Device device) const;  // [dim / 2]
  RotaryTables on_device(const Positions& positions, at::ScalarType dtype) const;
  RotaryTables row_by_row(const Positions& positions, at::ScalarType dtype, at::Device device) const;
  RotaryTables compute(const Tensor& ids, const Tensor& inverse, at::ScalarType dtype) const;
  RopeParameters rope_;
  RopeFrequencies original_;
  // Made when first needed, each entry once, and never changed: a copy is read without the lock.
  mutable std::mutex mutex_;
  mutable std::vector<Inverses> inverses_;  // one a device
  mutable RotaryTables prefix_;             // [1, capacity, dim] of positions 0, 1, ...
  mutable std::vector<Tensor> rows_;        // all that rows() has made: callers may hold any of them
};

// The slot rotary_pos_emb; one in every attention layer.
class RotaryPosEmb : public Module {
 public:
  // interleaved: what turns together stands side by side, else half of the turned part apart.
  explicit RotaryPosEmb(bool interleaved = false) : interleaved_(interleaved) {}
  // q: [batch, heads, time, head_dim], k: [batch, kv_heads, time, head_dim]
  std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const RotaryTables& tables) const {
    return forward_(q, k, tables.cos, tables.sin, tables.cos.size(-1), interleaved_);
  }
  bool bound() const { return forward_.bound(); }

 private:
  bool interleaved_;
  Slot<RotaryForward> forward_{this, "rotary_pos_emb", "rotary/1", stock::rotary};
};

}  // namespace hotswap
