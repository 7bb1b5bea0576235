// State space duality on a GPU: the second pass, states from chunk to chunk (ssd_plan.h). A block has a tile of one
// head's state in registers and walks over the chunks: H <- keep H + sum of w_j x_j ⊗ B_j, where forward w_j is
// r_j Δ_j, and backward the same of dH with dy, C and e_j.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/sm80_ssd_tile.cuh"

namespace mamba::ssd::gpu {
namespace {

constexpr int kThreads = 128, kStates = 64;  // of a state's row

template <class T>
struct Block {
  using Of = Tile<T>;
  static constexpr int kColumnWarps = 4 / Of::kRowWarps, kGroups = kStates / 16 / kColumnWarps;
  static constexpr int kTokenElements = tile_elements(Of::kParts, Of::kTokens, Of::kTileDim);
  static constexpr int kGroupElements = tile_elements(Of::kParts, Of::kTokens, kStates);
  struct Stage {
    BFloat16 tokens[kTokenElements], group[kGroupElements];
    float weight[Of::kTokens], keep[4];
  };
  struct Memory {
    alignas(16) Stage stage[2];
    BFloat16 rows[4][8][kStates + kPad];  // of each warp: states on their way out
  };
  static constexpr int kBlocks = Of::kParts == 1 ? 5 : 1;  // a multiprocessor's, so that 640 are there at once
};

template <class T, bool kPlain>
__global__ void __launch_bounds__(kThreads, Block<T>::kBlocks)
    walk_states(const Problem p, const Plan plan, const Walk walk, float* memory) {
  // ---- prologue: the tile of this block, its state in registers
  using B = Block<T>;
  using Of = Tile<T>;
  constexpr int kParts = Of::kParts, kTokens = Of::kTokens, kTileDim = Of::kTileDim, kGroups = B::kGroups;
  extern __shared__ __align__(16) unsigned char shared[];
  auto& m = *reinterpret_cast<typename B::Memory*>(shared);
  const int warp = warp_of(), row = warp % Of::kRowWarps * 16, column_warp = warp / Of::kRowWarps;
  const auto column = [&](int g) { return (g * B::kColumnWarps + column_warp) * 16; };

  const int64_t column_tiles = (p.state + kStates - 1) / kStates, row_tiles = (p.dim + kTileDim - 1) / kTileDim;
  int64_t item = blockIdx.x;
  const int first_state = int(item % column_tiles) * kStates;
  item /= column_tiles;
  const int first_number = int(item % row_tiles) * kTileDim;
  item /= row_tiles;
  const int64_t head = item % p.heads, batch = item / p.heads, group = head / (p.heads / p.groups);
  const int states = int(p.state) - first_state, elements = int(p.dim) - first_number;

  // elements of the state outside, whose row is `dim`
  Sums sums[kGroups] = {};
  const auto outside = [&](const auto& fn) {
    const int64_t entry = (batch * p.heads + head) * p.dim;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      each_pair(sums[g], [&](float* v, int second, int c) {
        const int r = row + first_row() + 8 * second, n = column(g) + c;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (r < elements && n + i < states) fn(v[i], (entry + first_number + r) * p.state + first_state + n + i);
        }
      });
    }
  };
  if (walk.first != nullptr) outside([&](float& v, int64_t at) { v = walk.first[at]; });

  // ---- producer: the tokens, the group and the weights of a chunk
  const int* starts =
      kPlain || p.sequence.data == nullptr ? nullptr : reinterpret_cast<const int*>(memory + plan.starts);
  const auto chunk_of = [&](int64_t i) { return walk.backward ? plan.chunks - 1 - i : i; };
  const auto steps_of = [&](int64_t chunk) {
    return memory + plan.steps + ((batch * plan.chunks + chunk) * p.heads + head) * plan.step_row;
  };
  const Pieces<kThreads> token_pieces(kTileDim, kTokens), group_pieces(kStates, kTokens);
  const Source<T> all_tokens = from_column(source_of<T>(walk.tokens, batch, 0, head, kTokens, int(p.dim), nullptr),
                                           first_number, kTileDim),
                  all_groups = from_column(source_of<T>(walk.group, batch, 0, group, kTokens, int(p.state), nullptr),
                                           first_state, kStates);
  const auto load = [&](int64_t i) {
    auto& stage = m.stage[i % 2];
    const int64_t chunk = chunk_of(i), first = chunk * kTokens, left = p.length - first;
    const int rows = int(left < kTokens ? left : kTokens);
    const int* begins = starts == nullptr ? nullptr : starts + (batch * plan.chunks + chunk) * (kTokens + 1);
    const Rows tokens = tile(stage.tokens, kTokens, kTileDim), others = tile(stage.group, kTokens, kStates);
    if constexpr (kPlain) {
      load_plain<kTokens, kTileDim, kThreads>(tokens, all_tokens.data + first * walk.tokens.step, walk.tokens.step,
                                              rows);
      load_plain<kTokens, kStates, kThreads>(others, all_groups.data + first * walk.group.step, walk.group.step, rows);
    } else {
      const auto from = [&](Source<T> source) {
        source.data += first * source.step, source.rows = rows, source.starts = begins;
        return source;
      };
      load_tile<T, kTokens>(tokens, from(all_tokens), token_pieces);
      load_tile<T, kTokens>(others, from(all_groups), group_pieces);
    }
    // the weights, and behind the arrays what stays of the state
    constexpr int kPieces = kTokens / 4;
    const float* steps = steps_of(chunk);
    const int t = int(threadIdx.x);
    if (t < kPieces)
      cp_async(stage.weight + 4 * t, steps + (walk.backward ? kEnter : kWeight) * kTokens + 4 * t, false);
    else if (t == kPieces)
      cp_async(stage.keep, steps + kStepArrays * kTokens, false);
    cp_async_commit();
  };

  // ---- what a pass stores
  // What the tile is now, for products with it.
  const auto keep = [&](int64_t chunk) {
    BFloat16* to = reinterpret_cast<BFloat16*>(memory + walk.states) +
                   ((batch * plan.chunks + chunk) * p.heads + head) * plan.state_entry +
                   (first_number + row) * plan.state8 + first_state;
    if constexpr (kPlain) {  // whole rows of 128 bytes at a time: smaller stores keep L2 busy
      auto& rows = m.rows[warp];
#pragma unroll
      for (int second = 0; second < 2; ++second) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
#pragma unroll
          for (int block = 0; block < 2; ++block) {
            const float* d = &sums[g].d[block][2 * second];
            *reinterpret_cast<uint32_t*>(&rows[first_row()][column(g) + 8 * block + lane_of() % 4 * 2]) =
                pack_pair<BFloat16>(d[0], d[1]);
          }
        }
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 8; r += 4) {
          const int in = r + lane_of() / 8, n = lane_of() % 8 * 8;
          *reinterpret_cast<uint4*>(to + (8 * second + in) * plan.state8 + n) =
              *reinterpret_cast<const uint4*>(&rows[in][n]);
        }
        __syncwarp();
      }
      return;
    }
    to += first_row() * plan.state8;
    const bool there[2] = {row + first_row() < elements, row + first_row() + 8 < elements};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const auto pair = [&](int block) {
          const float* d = &sums[g].d[block][2 * second];
          return in_parts<kParts>(d[0], d[1]);
        };
        const Pair<kParts> low = pair(0), high = pair(1);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const uint2 words = four_beside(low.part[part], high.part[part]);
          const int n = column(g) + column_of_four();
          if (there[second] && first_state + n < plan.state8)
            *reinterpret_cast<uint2*>(to + (part * p.dim + 8 * second) * plan.state8 + n) = words;
        }
      }
    }
  };

  // ---- main loop: over chunks, the next one loads meanwhile
  if (plan.chunks > 0) load(0);
  for (int64_t i = 0; i < plan.chunks; ++i) {
    cp_async_wait<0>();
    __syncthreads();
    if (i + 1 < plan.chunks) load(i + 1);
    keep(chunk_of(i));
    auto& stage = m.stage[i % 2];
    const float stays = stage.keep[0];
    const Rows tokens = tile(stage.tokens, kTokens, kTileDim), others = tile(stage.group, kTokens, kStates);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      each_pair(sums[g], [&](float* v, int, int) { v[0] *= stays, v[1] *= stays; });
    }
#pragma unroll
    for (int k = 0; k < kTokens; k += 16) {
      uint32_t a[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part) load_a<Major::kMN>(a[part], tokens, part, row, k);
      const int t = k + lane_of() % 4 * 2;
      const auto weight = [&](int t) { return *reinterpret_cast<const float2*>(stage.weight + t); };
      weigh<kParts>(a, weight(t), weight(t + 8));
#pragma unroll
      for (int g = 0; g < kGroups; ++g) multiply_parts<Major::kMN>(sums[g], a, others, k, column(g));
    }
  }

  // ---- epilogue: the last state
  if (walk.last != nullptr) outside([&](float& v, int64_t at) { walk.last[at] = v; });
}

}  // namespace

void states(const Problem& p, const Plan& plan, const Walk& walk, float* memory, Stream stream) {
  kernels::with_dtype(p.type, [&]<class T>() {
    const int64_t tiles = divide_up(p.dim, int64_t{Tile<T>::kTileDim}) * divide_up(p.state, int64_t{kStates});
    if (p.batch * p.heads * tiles == 0) return;
    const auto start = [&]<bool kPlain>() {
      kernels::gpu::launch_with_memory<&walk_states<T, kPlain>>(
          sizeof(typename Block<T>::Memory), p.batch * p.heads * tiles, kThreads, stream, p, plan, walk, memory);
    };
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (is_plain(p, {walk.tokens, walk.group})) return start.template operator()<true>();
    }
    start.template operator()<false>();
  });
}

}  // namespace mamba::ssd::gpu
