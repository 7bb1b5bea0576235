// State space duality on a GPU: y from what entered each chunk and the chunk's own tokens (ssd_plan.h).
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/sm80_ssd_tile.cuh"

namespace mamba::ssd::gpu {
namespace {

constexpr int kThreads = 128;

template <class T>
struct Block {
  using Of = Tile<T>;
  static constexpr int kColumnWarps = 4 / Of::kRowWarps;
  static constexpr int kStepsRead = (Of::kParts == 1 ? kEnter : kRest) + 1;  // arrays
  static constexpr int kGroups = Of::kTileDim / 16 / kColumnWarps, kTokenGroups = Of::kTokens / 16;

  // Shared memory, in 16-bit elements. B has the place of the second stage's state until G is made.
  int tokens, state, steps, stage, all;
  __host__ __device__ explicit Block(int64_t states)
      : tokens(tile_elements(Of::kParts, Of::kTokens, Of::kTileDim)),
        state(tile_elements(Of::kParts, Of::kTileDim, int(states))),
        steps(2 * kStepsRead * Of::kTokens),
        stage(tokens + state + steps),
        all(2 * stage + tile_elements(Of::kParts, Of::kTokens, int(states))) {}
};

template <class T, bool kPlain, bool kGated>
__global__ void __launch_bounds__(kThreads, Tile<T>::kParts == 1 ? 3 : 1)
    write_outputs(const Problem p, const Plan plan, const Outputs out, const float* memory) {
  // ---- prologue: rows and columns of this warp, shared memory by name
  using Of = Tile<T>;
  using B = Block<T>;
  constexpr int kParts = Of::kParts, kTokens = Of::kTokens, kTileDim = Of::kTileDim;
  static_assert(kTokens == kTileDim, "expected room for B in a state's place");
  extern __shared__ __align__(16) BFloat16 shared[];
  const B block(p.state);
  const Item<T> item(p, plan);
  const int states = int(p.state), dim = int(p.dim);
  const int warp = warp_of(), row = warp % Of::kRowWarps * 16, column_warp = warp / Of::kRowWarps;
  const auto column = [&](int g) { return (g * B::kColumnWarps + column_warp) * 16; };
  const auto stage_of = [&](int i) { return shared + i % 2 * block.stage; };
  const auto tokens_of = [&](int i) { return tile(stage_of(i), kTokens, kTileDim); };
  const auto state_of = [&](int i) { return tile(stage_of(i) + block.tokens, kTileDim, states); };
  const auto steps_of = [&](int i) { return reinterpret_cast<float*>(stage_of(i) + block.tokens + block.state); };
  const Rows c = tile(shared + 2 * block.stage, kTokens, states), b = state_of(1);

  // ---- producer: x, the state and the steps of a head's tile
  const int* starts =
      reinterpret_cast<const int*>(memory + plan.starts) + (item.batch * plan.chunks + item.chunk) * (kTokens + 1);
  const bool packed = !kPlain && p.sequence.data != nullptr;
  const int* begins = packed ? starts : nullptr;
  const Pieces<kThreads> token_pieces(kTileDim, kTokens), state_pieces(padded(states), kTokens);
  const auto load = [&](int i) {
    const Source<T> x = source_of<T>(p.x, item.batch, item.first, item.head(i), item.rows, dim, begins);
    if constexpr (kPlain)
      load_plain<kTokens, kTileDim, kThreads>(tokens_of(i), x.data + item.number(i), x.step, item.rows);
    else
      load_tile<T, kTokens>(tokens_of(i), from_column(x, item.number(i), kTileDim), token_pieces);
    const int64_t at = item.of_chunk(p, plan, i);
    load_state<kParts, kTileDim, kPlain>(
        state_of(i), reinterpret_cast<const BFloat16*>(memory + plan.states) + at * plan.state_entry, item.number(i),
        dim, int(plan.state8), state_pieces);
    load_floats_early<kThreads>(steps_of(i), memory + plan.steps + at * plan.step_row, B::kStepsRead * kTokens);
    cp_async_commit();
  };
  const auto load_group = [&](const Rows& to, const Tokens& t) {
    load_tile<T, kTokens>(to, source_of<T>(t, item.batch, item.first, item.group, item.rows, states, begins),
                          state_pieces);
  };

  // ---- prologue: B, C and the first stage are loaded; the pairs C_i B_j, which all heads of the block share
  load_group(c, p.C), load_group(b, p.B);
  load(0);
  cp_async_wait<0>();
  __syncthreads();

  // G_ij, of which columns up to the diagonal are wanted
  Sums dots[B::kTokenGroups] = {};
  const auto above = [&](int g) { return 16 * g > row; };
  multiply<kParts, Major::kK, Major::kK>(
      dots, c, row, b, padded(states), [](int g) { return 16 * g; }, above);
  int start[2];
#pragma unroll
  for (int second = 0; second < 2; ++second) start[second] = starts[row + first_row() + 8 * second];

  // ---- main loop: one head's tile of the chunk a pass
  for (int i = 0; i < item.count; ++i) {
    __syncthreads();  // nobody reads the other stage any more
    if (i + 1 < item.count) load(i + 1);
    const Rows x = tokens_of(i);
    const float* steps = steps_of(i);
    const int my_row = row + first_row();
    const Decayed<kParts> mine[2] = {{steps, kTokens, my_row}, {steps, kTokens, my_row + 8}};
    const float enters[2] = {steps[kEnter * kTokens + my_row], steps[kEnter * kTokens + my_row + 8]};

    // ---- y: through the state, then of the chunk's own tokens
    Sums y[B::kGroups] = {};
    multiply<kParts, Major::kK, Major::kK>(y, c, row, state_of(i), padded(states), column);
#pragma unroll
    for (int g = 0; g < B::kGroups; ++g) {
      each_pair(y[g], [&](float* v, int second, int) { v[0] *= enters[second], v[1] *= enters[second]; });
    }
#pragma unroll
    for (int k = 0; k < B::kTokenGroups; ++k) {
      if (above(k)) continue;
      uint32_t a[kParts][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = 16 * k + 8 * half + lane_of() % 4 * 2;
        // T_ij Δ_j
        const auto weight = [&](int second, int j) {
          if constexpr (kParts == 1)
            return exp2_approx(mine[second].sum - steps[kShifted * kTokens + j]);
          else
            return decay(mine[second], Decayed<kParts>(steps, kTokens, j)) * steps[kDelta * kTokens + j];
        };
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          const int r = my_row + 8 * second;
          const float* d = &dots[k].d[half][2 * second];
          float low = weight(second, j) * d[0], high = weight(second, j + 1) * d[1];
          if (packed || 16 * k == row) {
            const auto counts = [&](int j) { return j <= r && j >= start[second]; };
            low = counts(j) ? low : 0.f, high = counts(j + 1) ? high : 0.f;
          }
          const Pair<kParts> pair = in_parts<kParts>(low, high);
#pragma unroll
          for (int part = 0; part < kParts; ++part) a[part][2 * half + second] = pair.part[part];
        }
      }
#pragma unroll
      for (int g = 0; g < B::kGroups; ++g) multiply_parts<Major::kMN>(y[g], a, x, 16 * k, column(g));
    }

    // ---- epilogue of a pass: D x, the gate, y is stored
    const int64_t head = item.head(i);
    const int first_number = item.number(i);
    const auto outside = [&](const Tokens& t) {
      return outside_of<T>(t, item.batch, item.first, head, my_row, item.rows, first_number, dim);
    };
    const Skip skip = skip_of<kPlain>(p, head, first_number);
    const Outside<T> to = outside(kGated ? out.dz : out.y);
#pragma unroll
    for (int g = 0; g < B::kGroups; ++g) {
      [[maybe_unused]] Sums gated;
      each_pair(y[g], [&](float* v, int second, int in) {
        const int n = column(g) + in;
        const float2 at = x.template elements<kParts>(my_row + 8 * second, n);
        v[0] = fmaf(skip.at(n, to.columns), at.x, v[0]), v[1] = fmaf(skip.at(n + 1, to.columns), at.y, v[1]);
        if (packed && start[second] == kTokens) v[0] = v[1] = 0.f;
      });
      if (!kPlain && p.z.data != nullptr) {
        const Outside<T> z = outside(p.z), dy = outside(out.dy);
        each_pair(y[g], [&](float* v, int second, int in) {
          const int n = column(g) + in;
          const bool counts = to.row[second] != nullptr && !(packed && start[second] == kTokens);
          const float2 zs = counts ? read_pair(z, second, n) : float2{0.f, 0.f};
          const Gate low = gate_of(zs.x), high = gate_of(zs.y);
          if constexpr (kGated) {
            const float2 dys = counts ? read_pair(dy, second, n) : float2{0.f, 0.f};
            float* behind = &gated.d[0][0] + (v - &y[g].d[0][0]);
            behind[0] = dys.x * low.value, behind[1] = dys.y * high.value;
            v[0] *= dys.x * low.slope, v[1] *= dys.y * high.slope;
          } else {
            v[0] *= low.value, v[1] *= high.value;
          }
        });
      }
      if constexpr (!kPlain) write_sums(to, y[g], column(g));
      if constexpr (kGated) write_sums(outside(out.gated), gated, column(g));
    }
    if constexpr (kPlain) {
#pragma unroll
      for (int g = 0; g < B::kGroups; g += 2) write_sums_32(to, y[g], y[g + 1], column(g));
    }
    cp_async_wait<0>();
  }
}

}  // namespace

void outputs(const Problem& p, const Plan& plan, const Outputs& out, float* memory, Stream stream) {
  const int64_t items = items_of(p, plan);
  if (items == 0 || p.dim == 0) return;
  kernels::with_dtype(p.type, [&]<class T>() {
    const auto start = [&]<bool kPlain, bool kGated>() {
      kernels::gpu::launch_with_memory<&write_outputs<T, kPlain, kGated>>(
          2 * Block<T>(p.state).all, items, kThreads, stream, p, plan, out, static_cast<const float*>(memory));
    };
    if (out.dy.data != nullptr) return start.template operator()<false, true>();
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (is_plain(p, {p.x, out.y})) return start.template operator()<true, false>();
    }
    start.template operator()<false, false>();
  });
}

}  // namespace mamba::ssd::gpu
