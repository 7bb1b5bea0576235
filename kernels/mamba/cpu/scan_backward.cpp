// The selective scan's backward on the CPU, chunk by chunk from the last to the first. Compiled once per ISA.
#include "kernels/mamba/cpu/scan_kernels.h"
#include "kernels/mamba/cpu/scan_tile.h"
#include "kernels/mamba/cpu/sums.h"

namespace mamba::scan::HOTSWAP_ISA {
namespace {

// A chunk's gradients beside its inputs, and what a block of channels carries from chunk to chunk.
struct Gradients {
  float *h, *dh;                     // [states][kRow]: the state before the chunk; the gradient of the one behind it
  float *dy, *gate, *y;              // [kChunk][kRow]; gate: dz / y
  float *slope, *by_b, *by_rate;     // ddelta / dΔ; sum_n dh B; sum_n A log2 e q
  float *token_b, *token_c;          // [states][kChunk]: dB and dC of the block
  float* sums;                       // [sum_rows_of][kRow]
  float *da, *db, *dc, *dd, *dbias;  // rows of sums

  Gradients(const Problem& p, Scratch& scratch) {
    const int64_t states = p.states * kRow;
    h = scratch.take(states), dh = scratch.take(states);
    dy = scratch.take(kTile), gate = scratch.take(kTile), y = scratch.take(kTile);
    slope = scratch.take(kTile), by_b = scratch.take(kTile), by_rate = scratch.take(kTile);
    token_b = scratch.take(p.states * kChunk), token_c = scratch.take(p.states * kChunk);
    sums = scratch.take(sum_rows_of(p) * kRow);
    da = sums, db = da + states;
    dc = db + (p.b.constant ? states : 0);
    dd = dc + (p.c.constant ? states : 0);
    dbias = dd + kRow;
  }
};

// Sums of each row's lanes; rows beyond `steps` hold zeros.
HOTSWAP_INLINE void store_sums(F (&rows)[kChunk], float* to) {
  for (int64_t s = 0; s < kChunk; s += kLanes) store(to + s, sum_rows(*(F(*)[kLanes])(rows + s)));
}

// The states' part of all gradients: by_b, by_rate, y where it is wanted, and the sums.
template <bool kPacked, bool kB, bool kC>
void walk(const Inputs& in, Gradients& g, int64_t pitch, int states, int64_t steps, int vectors, bool wants_y) {
  for (int64_t n = 0; n < states; ++n) {
    F sum_b[kChunk] = {}, sum_c[kChunk] = {};
    for (int i = 0; i < vectors; ++i) {
      const int64_t c = i * kLanes, row = n * kRow + c;
      const F rate = load(in.rate + row);
      const Coefficient<kB> b(in.b, pitch, n, c);
      const Coefficient<kC> weight(in.c, pitch, n, c);
      F a[kChunk], held[kChunk], own_b{}, own_c{};  // held: a_t h_{t-1}
      F h = load(g.h + row);
      for (int64_t s = 0; s < steps; ++s) {
        const int64_t at = s * kRow + c;
        a[s] = exp2(load(in.delta + at) * rate);
        held[s] = a[s] * h;
        if constexpr (kPacked) held[s] = entering(held[s], in.marks.enters[s]);
        h = held[s] + load(in.x + at) * b(s);
        F& sum = kC ? own_c : sum_c[s];
        sum += load(g.dy + at) * h;
        if (wants_y) store(g.y + at, load(g.y + at) + h * weight(s));
      }
      F dh = load(g.dh + row), own_a{};
      for (int64_t s = steps - 1; s >= 0; --s) {
        const int64_t at = s * kRow + c;
        dh += load(g.dy + at) * weight(s);
        const F q = dh * held[s];
        store(g.by_b + at, load(g.by_b + at) + dh * b(s));
        store(g.by_rate + at, load(g.by_rate + at) + q * rate);
        own_a += load(in.delta + at) * q;
        F& sum = kB ? own_b : sum_b[s];
        sum += dh * load(in.x + at);
        dh *= a[s];
        if constexpr (kPacked) dh = entering(dh, in.marks.enters[s]);
      }
      store(g.dh + row, dh);
      store(g.da + row, load(g.da + row) + own_a);
      if constexpr (kB) store(g.db + row, load(g.db + row) + own_b);
      if constexpr (kC) store(g.dc + row, load(g.dc + row) + own_c);
    }
    if constexpr (!kB) store_sums(sum_b, g.token_b + n * kChunk);
    if constexpr (!kC) store_sums(sum_c, g.token_c + n * kChunk);
  }
}

// dy, and with a gate what it is made of; y starts with D u.
void open_chunk(const Backward& a, const Block& block, int64_t first, int64_t steps, const Inputs& in, Gradients& g) {
  load_tile(a.dy, block, first, steps, g.dy);
  clear_padding(in.marks, steps, g.dy, kRow);
  clear_tile(g.by_b, steps);
  clear_tile(g.by_rate, steps);
  if (a.of.z.data == nullptr) return;
  load_tile(a.of.z, block, first, steps, g.gate);
  clear_padding(in.marks, steps, g.gate, kRow);
  for (int64_t s = 0; s < steps; ++s) {
    for (int i = 0; i < block.vectors(); ++i) {
      const int64_t at = s * kRow + i * kLanes;
      const F dout = load(g.dy + at);
      const Gate gate = gate_of(load(g.gate + at));
      store(g.gate + at, dout * gate.slope);
      store(g.dy + at, dout * gate.value);
      store(g.y + at, load(in.skip + i * kLanes) * load(in.u + at));
    }
  }
}

// The gradients of u, delta and z, over by_b, by_rate and y.
void close_chunk(const Backward& a, const Block& block, int64_t first, int64_t steps, const Inputs& in, Gradients& g) {
  for (int i = 0; i < block.vectors(); ++i) {
    const F skip = load(in.skip + i * kLanes);
    F dd{}, dbias{};
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t at = s * kRow + i * kLanes;
      const F u = load(in.u + at), dy = load(g.dy + at), by_b = load(g.by_b + at);
      const F ddelta = (u * by_b + load(g.by_rate + at) * kLn2) * load(g.slope + at);
      dd += dy * u;
      dbias += ddelta;
      store(g.by_b + at, skip * dy + load(in.delta + at) * by_b);
      store(g.by_rate + at, ddelta);
      if (a.of.z.data != nullptr) store(g.y + at, load(g.gate + at) * load(g.y + at));
    }
    store(g.dd + i * kLanes, load(g.dd + i * kLanes) + dd);
    store(g.dbias + i * kLanes, load(g.dbias + i * kLanes) + dbias);
  }
  store_tile(a.du, block, first, steps, g.by_b);
  store_tile(a.ddelta, block, first, steps, g.by_rate);
  if (a.of.z.data != nullptr) store_tile(a.dz, block, first, steps, g.y);
}

// Where a chunk's token sums lie: [2][states][kChunk].
HOTSWAP_INLINE float* token_sums_at(const Backward& a, int64_t item, int64_t chunk) {
  const Problem& p = a.of;
  return a.token_sums + (item * chunks_of(p) + chunk) * 2 * p.states * kChunk;
}
void add_tokens(float* to, const float* from, int64_t count, bool begins) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, begins ? load(from + i) : load(to + i) + load(from + i));
}

void run_block(const Backward& a, const Block& block, int64_t group, int64_t item, bool begins, Inputs& in,
               Gradients& g) {
  const Problem& p = a.of;
  load_channels(p, block, in);
  clear_tile(g.sums, sum_rows_of(p));
  a.dlast.data != nullptr ? load_tile(a.dlast, block, 0, p.states, g.dh) : clear_tile(g.dh, p.states);
  for (int64_t chunk = chunks_of(p) - 1; chunk >= 0; --chunk) {
    const int64_t first = chunk * kChunk, steps = p.length - first < kChunk ? p.length - first : kChunk;
    load_tile(a.checkpoints, block, chunk * p.states, p.states, g.h);
    load_chunk(p, block, group, first, steps, in, g.slope);
    open_chunk(a, block, first, steps, in, g);
    with_kinds(!in.marks.whole, p.b.constant, p.c.constant, [&]<bool kPacked, bool kB, bool kC>() HOTSWAP_LAMBDA {
      walk<kPacked, kB, kC>(in, g, padded_states(p), p.states, steps, block.vectors(), p.z.data != nullptr);
    });
    close_chunk(a, block, first, steps, in, g);
    float* tokens = token_sums_at(a, item, chunk);
    if (!p.b.constant) add_tokens(tokens, g.token_b, p.states * kChunk, begins);
    if (!p.c.constant) add_tokens(tokens + p.states * kChunk, g.token_c, p.states * kChunk, begins);
  }
  if (a.dinitial.data != nullptr) store_tile(a.dinitial, block, 0, p.states, g.dh);
  const int64_t rows = sum_rows_of(p);
  const View sums{a.channel_sums, DType::kFloat32, rows * p.channels, 1, p.channels};
  store_tile(sums, block, 0, rows, g.sums);
}

}  // namespace

void backward(const Backward& a, float* memory, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  Scratch scratch{memory};
  Inputs in(p, scratch);
  Gradients g(p, scratch);
  const int64_t slots = slots_of(p), blocks = group_blocks_of(p);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t slot = item % slots, group = item / slots % p.groups, batch = item / slots / p.groups;
    const int64_t first = slot * blocks / slots, last = (slot + 1) * blocks / slots;
    for (int64_t k = first; k < last; ++k)
      run_block(a, group_block(p, batch, group, k), group, item, k == first, in, g);
  }
}

// dB or dC of a chunk of one group: `sums` of its first slot, to which the others' are added.
static void sum_slots(const Problem& p, const Coefficients& to, float* sums, int64_t slot_stride, int64_t entry,
                      int64_t chunk) {
  if (to.constant) return;
  const int64_t first = chunk * kChunk, slots = slots_of(p);
  for (int64_t slot = 1; slot < slots; ++slot) add_tokens(sums, sums + slot * slot_stride, p.states * kChunk, false);
  View view = of_group(to, entry % p.groups);  // in the sums steps are beside each other: they are the lanes
  view = {view.data, view.type, view.batch, view.step, view.channel};
  const int steps = int(p.length - first < kChunk ? p.length - first : kChunk);
  store_tile(view, {entry / p.groups, first, steps}, 0, p.states, sums, kChunk);
}

void sum_tokens(const Backward& a, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  const int64_t chunks = chunks_of(p), count = p.states * kChunk;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t entry = i / chunks, chunk = i % chunks;
    float* sums = token_sums_at(a, entry * slots_of(p), chunk);
    sum_slots(p, a.db, sums, chunks * 2 * count, entry, chunk);
    sum_slots(p, a.dc, sums + count, chunks * 2 * count, entry, chunk);
  }
}

void sum_channels(const Backward& a, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  const int64_t all = sum_rows_of(p);
  int64_t row = 0;
  const auto add = [&](const View& to, int64_t rows) {
    add_entries(a.channel_sums, p.batch, all, p.channels, row, rows, to, begin, end);
    row += rows;
  };
  add(a.da, p.states);
  if (p.b.constant) add(a.db.view, p.states);
  if (p.c.constant) add(a.dc.view, p.states);
  add(a.dd, 1);
  add(a.dbias, 1);
}

}  // namespace mamba::scan::HOTSWAP_ISA
