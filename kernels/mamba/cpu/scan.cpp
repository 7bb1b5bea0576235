// The selective scan's forward on the CPU: lanes are channels, a state's numbers go through a chunk of time one after
// the other, each in a register. Compiled once per ISA.
#include "kernels/mamba/cpu/scan_kernels.h"
#include "kernels/mamba/cpu/scan_tile.h"

namespace mamba::scan::HOTSWAP_ISA {
namespace {

// y += the states' part; h: [states][kRow], before and after.
template <bool kPacked, bool kB, bool kC>
void walk(const Inputs& in, int64_t pitch, int states, int64_t steps, int vectors, float* h_tile, float* y) {
  for (int i = 0; i < vectors; ++i) {
    const int64_t c = i * kLanes;
    for (int64_t n = 0; n < states; ++n) {
      const F rate = load(in.rate + n * kRow + c);
      const Coefficient<kB> b(in.b, pitch, n, c);
      const Coefficient<kC> weight(in.c, pitch, n, c);
      F h = load(h_tile + n * kRow + c);
      for (int64_t s = 0; s < steps; ++s) {
        const int64_t at = s * kRow + c;
        if constexpr (kPacked) h = entering(h, in.marks.enters[s]);
        h = exp2(load(in.delta + at) * rate) * h + load(in.x + at) * b(s);
        store(y + at, load(y + at) + h * weight(s));
      }
      store(h_tile + n * kRow + c, h);
    }
  }
}

void run_block(const Forward& a, const Block& block, int64_t group, Inputs& in, float* h, float* y, float* z) {
  const Problem& p = a.of;
  load_channels(p, block, in);
  p.initial.data != nullptr ? load_tile(p.initial, block, 0, p.states, h) : clear_tile(h, p.states);
  for (int64_t first = 0; first < p.length; first += kChunk) {
    const int64_t steps = p.length - first < kChunk ? p.length - first : kChunk;
    if (a.checkpoints.data != nullptr) store_tile(a.checkpoints, block, first / kChunk * p.states, p.states, h);
    load_chunk(p, block, group, first, steps, in, nullptr);
    for (int64_t s = 0; s < steps; ++s) {
      for (int i = 0; i < block.vectors(); ++i) {
        const int64_t at = s * kRow + i * kLanes;
        store(y + at, load(in.skip + i * kLanes) * load(in.u + at));
      }
    }
    with_kinds(!in.marks.whole, p.b.constant, p.c.constant, [&]<bool kPacked, bool kB, bool kC>() HOTSWAP_LAMBDA {
      walk<kPacked, kB, kC>(in, padded_states(p), p.states, steps, block.vectors(), h, y);
    });
    if (p.z.data != nullptr) {
      load_tile(p.z, block, first, steps, z);
      for (int64_t s = 0; s < steps; ++s) {
        for (int i = 0; i < block.vectors(); ++i) {
          const int64_t at = s * kRow + i * kLanes;
          store(y + at, load(y + at) * gate_of(load(z + at)).value);
        }
      }
    }
    clear_padding(in.marks, steps, y, kRow);  // with constant C a state that stays would show
    store_tile(a.y, block, first, steps, y);
  }
  store_tile(a.last, block, 0, p.states, h);
}

void forward(const Forward& a, float* memory, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  Scratch scratch{memory};
  Inputs in(p, scratch);
  float *h = scratch.take(p.states * kRow), *y = scratch.take(kTile), *z = scratch.take(kTile);
  const int64_t blocks = group_blocks_of(p);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t group = i / blocks % p.groups, batch = i / blocks / p.groups;
    run_block(a, group_block(p, batch, group, i % blocks), group, in, h, y, z);
  }
}

}  // namespace

const Table kTable = {.forward = forward, .backward = backward, .sum_tokens = sum_tokens, .sum_channels = sum_channels};

}  // namespace mamba::scan::HOTSWAP_ISA
