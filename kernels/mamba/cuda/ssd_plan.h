// How the kernels of state space duality cut a problem up on a GPU, and where in their memory what lies. In steps:
//
//   ssd_steps      Δ, S and the decays of every token and head
//   ssd_states     the state before each chunk, chunk after chunk; backward also the gradient of the one after it
//   ssd_outputs    y: chunks, and blocks of a group's heads, beside each other; G = C B^T once a block
//   ssd_gradients  the gradients, in the same items
//   ssd_steps      again: what is summed over blocks of heads, or over all tokens
//
// Forward, where batch and heads fill the GPU, ssd_walk goes instead of states and outputs.
//
// Products are of bfloat16, with float32 sums. A number of a wider type is a sum of parts, each the rest of the ones
// before it rounded: float32 has three, float16 two, and products of parts too small to count are left out. So float32
// and float16 are exact to their own rounding; bfloat16's states, decays and sums are rounded once on their way into a
// product.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/mamba/cuda/mamba.h"

namespace mamba::ssd::gpu {

using kernels::divide_up;
using kernels::Stream;

// Of elements of type T: tokens of a chunk; elements of a head that are worked on at once; parts of a number; of a
// block's warps so many beside each other along tokens.
template <class T>
struct Tile {
  static constexpr int kParts = sizeof(T) == 4 ? 3 : 2, kTokens = 32, kTileDim = 32, kRowWarps = 2;
};
template <>
struct Tile<kernels::BFloat16> {
  static constexpr int kParts = 1, kTokens = 64, kTileDim = 64, kRowWarps = 4;
};

// Arrays of a chunk's tokens for one head, kTokens elements each; then one number, what stays of the state. kSum and
// kRest are S in units of log 2, in two parts; kShifted is S - log2 Δ, so that T_ij Δ_j is one exponential; kWeight r_j
// Δ_j. Forward in bfloat16 goes without those behind kWeight.
enum StepArray { kSum, kShifted, kEnter, kWeight, kDelta, kRest, kLeave, kSlope, kStepArrays };

// Sums over all tokens of each head: dA, ddt_bias, and dD where a head has one.
enum HeadSum { kOfA, kOfBias, kOfD, kHeadSums };

// Where everything is. Memory is counted in floats; `used` is all of it.
struct Plan {
  int tokens, parts;
  bool backward;
  int64_t chunks, state8;      // a state's row padded to 16 bytes
  int64_t heads_each, blocks;  // heads a block, blocks a group
  int64_t step_row;            // floats of steps a chunk and head
  int64_t state_entry;         // bfloat16 elements of a chunk's and head's state
  int64_t sum_rows;            // of head_sums a chunk: one a warp of ssd_gradients
  int64_t starts, steps, states, dstates, gated, token_sums, head_sums, number_sums, used;
};

inline Plan plan_of(const Problem& p, bool backward, int multiprocessors) {
  Plan plan{};
  plan.backward = backward;
  kernels::with_dtype(p.type, [&]<class T>() { plan.tokens = Tile<T>::kTokens, plan.parts = Tile<T>::kParts; });
  plan.chunks = divide_up(p.length, int64_t{plan.tokens});
  plan.state8 = divide_up(p.state, int64_t{8}) * 8;
  plan.step_row = kStepArrays * plan.tokens + 4;
  plan.state_entry = plan.parts * p.dim * plan.state8;
  plan.sum_rows = plan.tokens == 64 ? 16 : 4;
  const int64_t group = p.heads / p.groups, items = p.batch * plan.chunks * p.groups;
  // The blocks' heads share G and sums of tokens: as many as keep all multiprocessors at work to the end. A round of
  // blocks takes as long as its heads and what comes before and after them.
  const int64_t at_once = int64_t{multiprocessors} * (backward ? 1 : 3);
  double least = 0;
  for (int64_t blocks = 1; blocks <= group; ++blocks) {
    const int64_t heads = divide_up(group, blocks);
    const double rounds = double(divide_up(items * divide_up(group, heads), at_once)), time = rounds * (heads + 2.);
    if (blocks == 1 || time < least) least = time, plan.heads_each = heads, plan.blocks = divide_up(group, heads);
  }

  const auto take = [&](int64_t floats) {
    const int64_t at = plan.used;
    plan.used += divide_up(floats, int64_t{64}) * 64;
    return at;
  };
  const int64_t chunks = p.batch * plan.chunks, states = chunks * p.heads * plan.state_entry / 2;
  plan.starts = take(chunks * (plan.tokens + 1));
  plan.steps = take(chunks * p.heads * plan.step_row);
  plan.states = take(states);  // the last of forward, which may go without (walks)
  if (!backward) return plan;
  plan.dstates = take(states);
  if (p.z.data != nullptr) plan.gated = take(p.batch * p.length * p.heads * p.dim);
  plan.token_sums = take(2 * p.batch * p.length * p.groups * plan.blocks * p.state);
  plan.head_sums = take(kHeadSums * chunks * plan.sum_rows * p.heads);
  if (p.D != nullptr && p.each_D) plan.number_sums = take(chunks * p.heads * p.dim);
  return plan;
}

// ---- the steps of a pass, each some launches

void steps(const Problem& p, const Plan& plan, float* memory, Stream stream);

// What a walk over the chunks adds to the state: rows of `tokens` (x, dy) times rows of `group` (B, C).
struct Walk {
  Tokens tokens, group;
  const float* first;  // [batch, heads, dim, state] or null: before the first chunk walked
  float* last;         // as first: after the last; or null
  int64_t states;      // where in memory each chunk's is kept
  bool backward;       // from the last chunk on, with the gradient's decays
};
void states(const Problem& p, const Plan& plan, const Walk& walk, float* memory, Stream stream);

// Is it the usual case, which has kernels of its own: one sequence a row, heads of whole tiles, whole vectors?
inline bool is_plain(const Problem& p, std::initializer_list<Tokens> tensors) {
  bool plain = p.type == DType::kBFloat16 && p.sequence.data == nullptr && p.z.data == nullptr && !p.each_D &&
               p.dim % Tile<kernels::BFloat16>::kTileDim == 0 && p.state % 64 == 0;
  for (const Tokens& t : tensors)
    plain = plain && (t.batch | t.step | t.head) % 8 == 0 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  return plain;
}

// y and the state in one pass, where there are enough heads.
bool walks(const Problem& p, const Tokens& y, int multiprocessors);
void walk(const Problem& p, const Plan& plan, const Tokens& y, float* final, float* memory, Stream stream);

// y; or, where dy is given, through the gate: dz, and dy before it in `gated`.
struct Outputs {
  Tokens y, dy, dz, gated;
};
void outputs(const Problem& p, const Plan& plan, const Outputs& out, float* memory, Stream stream);

// Of the tokens: dx, ddt and what `sums` adds up.
void gradients(const ssd::Backward& a, const Plan& plan, const Tokens& dy, float* memory, Stream stream);
void sums(const ssd::Backward& a, const Plan& plan, float* memory, Stream stream);

}  // namespace mamba::ssd::gpu
