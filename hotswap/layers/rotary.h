// Rotary position embedding: tables of cos and sin, and the rotation of queries and keys.
#pragma once

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
  int64_t below = 0;  // every one of ids is, where that is known: in a cache of a fixed size
};

struct RotaryTables {
  Tensor cos, sin;  // [1 or batch, length, dim], both halves
};

class RotaryEmbedding {
 public:
  explicit RotaryEmbedding(RopeParameters rope);
  // The dynamic types keep state between calls, as transformers' module does: growing past the trained length changes
  // the frequencies, a short sequence afterwards resets them.
  RotaryTables tables(const Positions& positions, at::ScalarType dtype, at::Device device);
  // Of one token all tables that may be wanted, cos and sin of a place side by side: [`below` or more, 2 dim];
  // undefined where they depend on more than the place.
  Tensor rows(int64_t below, at::ScalarType dtype, at::Device device);
  static RotaryTables halves(const Tensor& row);  // [1, 1, 2 dim] of them

 private:
  bool stateful() const { return rope_.type == "dynamic" || rope_.type == "longrope"; }
  void follow(const Positions& positions);
  Tensor inverse_there(const Tensor& ids);
  RotaryTables looked_up(const Positions& positions, at::ScalarType dtype);
  RotaryTables compute(const Tensor& ids, const Tensor& inverse, at::ScalarType dtype) const;
  RopeParameters rope_;
  RopeFrequencies original_, current_;
  int64_t reached_;  // the length that current_ serves, for type dynamic
  // Of one token on a device all tables that may be wanted, [2^n, 2 dim], and those before them: a captured graph may
  // still read one.
  std::vector<Tensor> rows_;
  // On the device of positions that lie on one: both types' choices of frequencies, and what dynamic has reached.
  Tensor original_there_, long_there_, reached_there_;
  RotaryTables cached_;  // [1, capacity, dim] of positions 0, 1, ..., for the types without state
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
