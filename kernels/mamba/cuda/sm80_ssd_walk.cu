// State space duality on a GPU in one pass, where batch and heads fill it: a block walks over a head's chunks with the
// state in registers, so that no state goes to memory and x is read once. bfloat16, the usual case (is_plain), states
// of up to 128 elements.
//
// Warps have 16 rows each: of the chunk's tokens for G and y, of the head's elements for the state. In a chunk: the
// state as it enters goes to shared memory; y = e_i C H^T + (G T Δ) x; H <- keep H + sum of w_j x_j ⊗ B_j.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/sm80_ssd_tile.cuh"

namespace mamba::ssd::gpu {
namespace {

constexpr int kThreads = 128, kTokens = 64, kTileDim = 64, kMaxStates = 128;
constexpr int kTokenGroups = kTokens / 16, kGroups = kTileDim / 16;
constexpr int kStepsRead = kWeight + 1;  // arrays
constexpr int kBlocks = 3;               // a multiprocessor's
constexpr auto kContiguous = Major::kK, kAcross = Major::kMN;

template <int kStates>
struct Memory {
  static constexpr int kGroupElements = tile_elements(1, kTokens, kStates);
  struct Stage {
    BFloat16 x[tile_elements(1, kTokens, kTileDim)];
    float steps[kStepsRead * kTokens], keep[4];
  };
  alignas(16) Stage stage[2];
  BFloat16 b[kGroupElements], c[kGroupElements], state[tile_elements(1, kTileDim, kStates)];
};

template <int kStates>
__global__ void __launch_bounds__(kThreads, kBlocks)
    walk_forward(const Problem p, const Plan plan, const Tokens y, float* final, const float* memory) {
  // ---- prologue: the rows of this warp, its state in registers
  constexpr int kStateGroups = kStates / 16;
  extern __shared__ __align__(16) unsigned char shared[];
  auto& m = *reinterpret_cast<Memory<kStates>*>(shared);
  const int warp = warp_of(), row = warp * 16, my_row = row + first_row(), lane = lane_of();
  const int64_t tiles = p.dim / kTileDim, of_head = int64_t{blockIdx.x} / tiles,
                first_number = blockIdx.x % tiles * kTileDim;
  const int64_t head = of_head % p.heads, batch = of_head / p.heads, group = head / (p.heads / p.groups);
  const auto each = [](int g) { return 16 * g; };

  grid_dependency_wait();

  // the state's rows of this warp
  Sums state[kStateGroups] = {};
  const int64_t entry = ((batch * p.heads + head) * p.dim + first_number + my_row) * p.state;
  const auto outside = [&](const auto& fn) {
#pragma unroll
    for (int g = 0; g < kStateGroups; ++g) {
      each_pair(state[g], [&](float* v, int second, int n) { fn(v, entry + 8 * second * p.state + 16 * g + n); });
    }
  };
  if (p.initial != nullptr) outside([&](float* v, int64_t at) { v[0] = p.initial[at], v[1] = p.initial[at + 1]; });

  // ---- producer: B and C of a chunk, its x and its steps
  const auto tokens_of = [&](const Tokens& t, int64_t head) {
    return static_cast<BFloat16*>(t.data) + batch * t.batch + head * t.head;
  };
  const BFloat16 *x = tokens_of(p.x, head) + first_number, *b = tokens_of(p.B, group), *c = tokens_of(p.C, group);
  const auto rows_of = [&](int64_t chunk) {
    const int64_t left = p.length - chunk * kTokens;
    return int(left < kTokens ? left : kTokens);
  };
  const auto load_group = [&](BFloat16* to, const BFloat16* from, const Tokens& t, int64_t chunk) {
    load_plain<kTokens, kStates, kThreads>(tile(to, kTokens, kStates), from + chunk * kTokens * t.step, t.step,
                                           rows_of(chunk));
  };
  const auto load_x = [&](int64_t chunk) {
    auto& stage = m.stage[chunk % 2];
    load_plain<kTokens, kTileDim, kThreads>(tile(stage.x, kTokens, kTileDim), x + chunk * kTokens * p.x.step, p.x.step,
                                            rows_of(chunk));
    const float* steps = memory + plan.steps + ((batch * plan.chunks + chunk) * p.heads + head) * plan.step_row;
    constexpr int kPieces = kStepsRead * kTokens / 4;
    const int t = int(threadIdx.x);
    if (t < kPieces)
      cp_async(stage.steps + 4 * t, steps + 4 * t, false);
    else if (t == kPieces)
      cp_async(stage.keep, steps + kStepArrays * kTokens, false);
  };

  // ---- main loop: over chunks
  if (plan.chunks > 0) {
    load_x(0), load_group(m.b, b, p.B, 0), load_group(m.c, c, p.C, 0);
    cp_async_commit();
  }
  const Rows bs = tile(m.b, kTokens, kStates), cs = tile(m.c, kTokens, kStates), h = tile(m.state, kTileDim, kStates);
  for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
    auto& stage = m.stage[chunk % 2];
    const Rows xs = tile(stage.x, kTokens, kTileDim);
    const float* steps = stage.steps;

    // ---- the state that enters, for all warps
    // What enters. Nobody reads the one before: all are behind the last barrier.
#pragma unroll
    for (int g = 0; g < kStateGroups; ++g) {
      each_pair(state[g], [&](float* v, int second, int n) {
        *reinterpret_cast<uint32_t*>(h.at(0, my_row + 8 * second, 16 * g + n)) = pack_pair<BFloat16>(v[0], v[1]);
      });
    }
    cp_async_wait<0>();
    __syncthreads();
    if (chunk + 1 < plan.chunks) load_x(chunk + 1);
    cp_async_commit();

    // ---- y: through the state, then of the chunk's own tokens
    const auto above = [&](int g) { return 16 * g > row; };
    Sums dots[kTokenGroups] = {}, ys[kGroups] = {};
#pragma unroll
    for (int k = 0; k < kStates; k += 16) {
      uint32_t rows[4], columns[4];
      load_a<kContiguous>(rows, cs, 0, row, k);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        load_b<kContiguous>(columns, h, 0, k, 16 * g);
        multiply_16x16(ys[g], rows, columns);
      }
#pragma unroll
      for (int g = 0; g < kTokenGroups; ++g) {
        if (above(g)) continue;
        load_b<kContiguous>(columns, bs, 0, k, 16 * g);
        multiply_16x16(dots[g], rows, columns);
      }
    }
    const float sums[2] = {steps[kSum * kTokens + my_row], steps[kSum * kTokens + my_row + 8]};
    const float enters[2] = {steps[kEnter * kTokens + my_row], steps[kEnter * kTokens + my_row + 8]};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      each_pair(ys[g], [&](float* v, int second, int) { v[0] *= enters[second], v[1] *= enters[second]; });
    }
#pragma unroll
    for (int k = 0; k < kTokenGroups; ++k) {
      if (above(k)) continue;
      uint32_t rows[4], columns[4];
      each_pair(dots[k], [&](float* v, int second, int n) {
        const int j = 16 * k + n, r = my_row + 8 * second;
        const float2 shifted = *reinterpret_cast<const float2*>(steps + kShifted * kTokens + j);
        float low = exp2_approx(sums[second] - shifted.x) * v[0], high = exp2_approx(sums[second] - shifted.y) * v[1];
        if (16 * k == row) low = j <= r ? low : 0.f, high = j + 1 <= r ? high : 0.f;
        rows[2 * int((v - &dots[k].d[0][0]) / 4) + second] = pack_pair<BFloat16>(low, high);
      });
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        load_b<kAcross>(columns, xs, 0, 16 * k, 16 * g);
        multiply_16x16(ys[g], rows, columns);
      }
    }

    // ---- y is stored, with D x
    const float skip = p.D == nullptr ? 0.f : p.D[head];
    const Outside<BFloat16> to =
        outside_of<BFloat16>(y, batch, chunk * kTokens, head, my_row, rows_of(chunk), int(first_number), int(p.dim));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      each_pair(ys[g], [&](float* v, int second, int n) {
        const float2 at = xs.elements<1>(my_row + 8 * second, 16 * g + n);
        v[0] = fmaf(skip, at.x, v[0]), v[1] = fmaf(skip, at.y, v[1]);
      });
    }
#pragma unroll
    for (int g = 0; g < kGroups; g += 2) write_sums_32(to, ys[g], ys[g + 1], 16 * g);

    // ---- the state that leaves
    const float stays = stage.keep[0];
#pragma unroll
    for (int g = 0; g < kStateGroups; ++g) {
      each_pair(state[g], [&](float* v, int, int) { v[0] *= stays, v[1] *= stays; });
    }
#pragma unroll
    for (int k = 0; k < kTokens; k += 16) {
      uint32_t rows[1][4], columns[4];
      load_a<kAcross>(rows[0], xs, 0, row, k);
      const auto weight = [&](int t) { return *reinterpret_cast<const float2*>(steps + kWeight * kTokens + t); };
      weigh<1>(rows, weight(k + lane % 4 * 2), weight(k + lane % 4 * 2 + 8));
#pragma unroll
      for (int g = 0; g < kStateGroups; ++g) {
        load_b<kAcross>(columns, bs, 0, k, 16 * g);
        multiply_16x16(state[g], rows[0], columns);
      }
    }
    __syncthreads();  // B, C and the state in shared memory have been read
    if (chunk + 1 < plan.chunks) load_group(m.b, b, p.B, chunk + 1), load_group(m.c, c, p.C, chunk + 1);
    cp_async_commit();
  }

  // ---- epilogue: the last state
  outside([&](float* v, int64_t at) { *reinterpret_cast<float2*>(final + at) = {v[0], v[1]}; });
}

template <int kStates>
void start(const Problem& p, const Plan& plan, const Tokens& y, float* final, const float* memory, Stream stream) {
  kernels::gpu::launch_after_with_memory<&walk_forward<kStates>>(
      sizeof(Memory<kStates>), p.batch * p.heads * (p.dim / kTileDim), kThreads, 1, stream, p, plan, y, final, memory);
}

}  // namespace

bool walks(const Problem& p, const Tokens& y, int multiprocessors) {
  const int64_t blocks = p.batch * p.heads * (p.dim / kTileDim);
  return blocks >= 2 * multiprocessors && (p.state == 64 || p.state == kMaxStates) && is_plain(p, {p.x, p.B, p.C, y});
}

void walk(const Problem& p, const Plan& plan, const Tokens& y, float* final, float* memory, Stream stream) {
  if (p.state == 64)
    start<64>(p, plan, y, final, memory, stream);
  else
    start<kMaxStates>(p, plan, y, final, memory, stream);
}

}  // namespace mamba::ssd::gpu
