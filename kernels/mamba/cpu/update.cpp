// The scans' step of generation on the CPU: lanes are a row's states. Compiled once per ISA.
#include "kernels/mamba/update.h"

#include "kernels/mamba/cpu/exp2.h"
#include "kernels/mamba/cpu/gate.h"
#include "kernels/mamba/cpu/tile.h"

namespace mamba::update::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;
using namespace mamba::HOTSWAP_ISA;

namespace {

// What a block of one head's rows has: of each row a number.
struct Rows {
  alignas(64) float x[kRow], delta[kRow], decay[kRow], y[kRow], other[kRow];
  alignas(64) float b[kMaxStates], c[kMaxStates], rates[kMaxStates], state[kMaxStates];
};

View of_head(const Heads& t, int64_t head) {
  View view = t.view;
  if (view.data != nullptr) view.data = static_cast<char*>(view.data) + head * t.head * size_of(view.type);
  return view;
}
void load_rows(const Heads& t, int64_t head, const Block& block, float* to) {
  const View view = of_head(t, head);
  view.data != nullptr ? load_tile(view, block, 0, 1, to) : clear_tile(to, 1);
}

// Numbers of a row as float32 beside each other: where they lie, or copied to `copy`.
template <class T>
const float* as_floats(const T* row, int64_t stride, int count, float* copy) {
  if constexpr (__is_same(T, float)) {
    if (stride == 1) return row;
  }
  for (int n = 0; n < count; ++n) copy[n] = to_float(row[n * stride]);
  return copy;
}

// h, a row of the state, and what it gives to y. rates: null where all its numbers decay alike.
template <class T>
HOTSWAP_INLINE float step_row(T* h, int states, const Rows& r, int p, const float* rates) {
  const float input = r.delta[p] * r.x[p], delta = r.delta[p] * kLog2E;
  const F decay = F{} + r.decay[p];
  F y{};
  sweep(states, [&](int64_t n, auto count) HOTSWAP_LAMBDA {
    const F a = rates != nullptr ? exp2(load(rates + n, count) * delta) : decay;
    const F next = a * load(h + n, count) + load(r.b + n) * input;
    store(h + n, next, count);
    y += next * load(r.c + n);
  });
  return sum(y);
}

void step_state(const Problem& p, const Block& block, int64_t head, int64_t entry, Rows& r) {
  const View state = of_head(p.state, head), a = of_head(p.a, head);
  const bool alike = a.step == 0 || p.states == 1;
  Block row = block;
  row.batch = entry;
  for (int i = 0; i < block.channels; ++i, ++row.channel) {
    const float* rates = nullptr;
    if (!alike) {
      with_dtype(a.type, [&]<typename T>() {
        Block of_a = row;
        of_a.batch = 0;
        rates = as_floats(place<const T>(a, of_a, 0), a.step, p.states, r.rates);
      });
    }
    with_dtype(state.type, [&]<typename T>() {
      T* h = place<T>(state, row, 0);
      if (state.step == 1 || p.states == 1) {
        r.y[i] = step_row(h, p.states, r, i, rates);
        return;
      }
      for (int n = 0; n < p.states; ++n) r.state[n] = to_float(h[n * state.step]);
      r.y[i] = step_row(r.state, p.states, r, i, rates);
      for (int n = 0; n < p.states; ++n) h[n * state.step] = from_float<T>(r.state[n]);
    });
  }
}

void update_block(const Problem& p, const Block& block, int64_t head, int64_t entry, Rows& r) {
  const int64_t group = head / (p.heads / p.groups);
  const Block numbers{block.batch, 0, p.states};
  Block channels = block;
  channels.batch = 0;
  load_tile(of_head(p.b, group), numbers, 0, 1, r.b, kMaxStates);
  load_tile(of_head(p.c, group), numbers, 0, 1, r.c, kMaxStates);
  load_rows(p.x, head, block, r.x);
  load_rows(p.dt, head, block, r.delta);
  load_rows(p.dt_bias, head, channels, r.other);
  load_rows(p.a, head, channels, r.decay);
  for (int c = 0; c < block.vectors() * kLanes; c += kLanes) {
    const F raw = load(r.delta + c) + load(r.other + c), delta = p.softplus ? softplus(raw) : raw;
    store(r.delta + c, delta);
    store(r.decay + c, exp2(delta * load(r.decay + c) * kLog2E));
  }
  step_state(p, block, head, entry, r);
  load_rows(p.d, head, channels, r.other);
  const bool gated = p.z.view.data != nullptr;
  if (gated) load_rows(p.z, head, block, r.delta);
  for (int c = 0; c < block.vectors() * kLanes; c += kLanes) {
    F y = load(r.y + c) + load(r.other + c) * load(r.x + c);
    if (gated) y *= gate_of(load(r.delta + c)).value;
    store(r.y + c, y);
  }
}

void update(const Problem& p, int64_t begin, int64_t end) {
  Rows r;
  clear_tile(r.y, 1);
  const int64_t blocks = blocks_of(p.dim);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t head = i / blocks % p.heads, batch = i / blocks / p.heads;
    Block block = block_of(p.dim, i % blocks);
    block.batch = batch;
    const int64_t entry = p.indices != nullptr ? p.indices[batch] : batch;
    entry >= 0 ? update_block(p, block, head, entry, r) : clear_tile(r.y, 1);
    store_tile(of_head(p.y, head), block, 0, 1, r.y);
  }
}

}  // namespace

const Table kTable = {.update = update};

}  // namespace mamba::update::HOTSWAP_ISA
