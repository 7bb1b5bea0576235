// State space duality on a GPU: y from what entered each chunk and the chunk's own tokens (ssd_plan.h).
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/ssd_tile.cuh"

namespace mamba::ssd::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kStepsRead = kEnter + 1;  // arrays

template <class T>
struct Block {
  using Of = Tile<T>;
  static constexpr int kColumnWarps = 4 / Of::kRowWarps;
  static constexpr int kGroups = Of::kNumbers / 16 / kColumnWarps, kTokenGroups = Of::kTokens / 16;

  // Shared memory, in 16-bit numbers. B has the place of the second stage's state until G is made.
  int tokens, state, steps, stage, all;
  __host__ __device__ explicit Block(int64_t states)
      : tokens(tile_numbers(Of::kParts, Of::kTokens, Of::kNumbers)),
        state(tile_numbers(Of::kParts, Of::kNumbers, int(states))),
        steps(2 * kStepsRead * Of::kTokens),
        stage(tokens + state + steps),
        all(2 * stage + tile_numbers(Of::kParts, Of::kTokens, int(states))) {}
};

template <class T, bool kGated>
__global__ void __launch_bounds__(kThreads) write_outputs(const Problem p, const Plan plan, const Outputs out,
                                                          const float* memory) {
  using Of = Tile<T>;
  using B = Block<T>;
  constexpr int kParts = Of::kParts, kTokens = Of::kTokens, kNumbers = Of::kNumbers;
  static_assert(kTokens == kNumbers, "wanted room for B in a state's place");
  extern __shared__ __align__(16) BFloat16 shared[];
  const B block(p.state);
  const Item<T> item(p, plan);
  const int states = int(p.state), dim = int(p.dim);
  const int warp = int(threadIdx.x) / 32, row = warp % Of::kRowWarps * 16, column_warp = warp / Of::kRowWarps;
  const auto column = [&](int g) { return (g * B::kColumnWarps + column_warp) * 16; };
  const auto stage_of = [&](int i) { return shared + i % 2 * block.stage; };
  const auto tokens_of = [&](int i) { return tile(stage_of(i), kTokens, kNumbers); };
  const auto state_of = [&](int i) { return tile(stage_of(i) + block.tokens, kNumbers, states); };
  const auto steps_of = [&](int i) { return reinterpret_cast<float*>(stage_of(i) + block.tokens + block.state); };
  const Rows c = tile(shared + 2 * block.stage, kTokens, states), b = state_of(1);

  const int* starts = reinterpret_cast<const int*>(memory + plan.starts) +
                      (item.batch * plan.chunks + item.chunk) * (kTokens + 1);
  const int* begins = p.sequence.data == nullptr ? nullptr : starts;
  const auto load = [&](int i) {
    load_tile<T, kTokens, kThreads>(
        tokens_of(i), from_column(source_of<T>(p.x, item.batch, item.first, item.head(i), item.rows, dim, begins),
                                  item.number(i), kNumbers));
    const int64_t at = item.of_chunk(p, plan, i);
    load_state<kParts, kNumbers, kThreads>(
        state_of(i), reinterpret_cast<const BFloat16*>(memory + plan.states) + at * plan.state_entry,
        item.number(i), dim, int(plan.state8));
    load_floats_early<kThreads>(steps_of(i), memory + plan.steps + at * plan.step_row, kStepsRead * kTokens);
    commit_copies();
  };
  const auto group_tile = [&](const Tokens& t) {
    return source_of<T>(t, item.batch, item.first, item.group, item.rows, states, begins);
  };
  load_tile<T, kTokens, kThreads>(c, group_tile(p.C));
  load_tile<T, kTokens, kThreads>(b, group_tile(p.B));
  load(0);
  wait_copies<0>();
  __syncthreads();

  // G_ij, of which columns up to the diagonal are wanted
  Sums dots[B::kTokenGroups] = {};
  const auto above = [&](int g) { return 16 * g > row; };
  multiply<kParts, Lie::kAlong, Lie::kAlong>(dots, c, row, b, padded(states), [](int g) { return 16 * g; }, above);
  int start[2];
#pragma unroll
  for (int second = 0; second < 2; ++second) start[second] = starts[row + first_row() + 8 * second];

  for (int i = 0; i < item.count; ++i) {
    __syncthreads();  // nobody reads the other stage any more
    if (i + 1 < item.count) load(i + 1);
    const Rows x = tokens_of(i);
    const float* steps = steps_of(i);
    float sum[2], rest[2];
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int r = row + first_row() + 8 * second;
      sum[second] = steps[kSum * kTokens + r], rest[second] = steps[kRest * kTokens + r];
    }

    Sums y[B::kGroups] = {};
    multiply<kParts, Lie::kAlong, Lie::kAlong>(y, c, row, state_of(i), padded(states), column);
#pragma unroll
    for (int g = 0; g < B::kGroups; ++g) {
      each_pair(y[g], [&](float* v, int second, int) {
        const float enter = steps[kEnter * kTokens + row + first_row() + 8 * second];
        v[0] *= enter, v[1] *= enter;
      });
    }
#pragma unroll
    for (int k = 0; k < B::kTokenGroups; ++k) {
      if (above(k)) continue;
      uint32_t a[kParts][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = 16 * k + 8 * half + lane_of() % 4 * 2;
        const auto two = [&](int array) { return *reinterpret_cast<const float2*>(steps + array * kTokens + j); };
        const float2 sums_j = two(kSum), rests_j = two(kRest), deltas = two(kDelta);
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          const int r = row + first_row() + 8 * second;
          const float* d = &dots[k].d[half][2 * second];
          const float low = decay(sum[second], rest[second], sums_j.x, rests_j.x) * deltas.x * d[0];
          const float high = decay(sum[second], rest[second], sums_j.y, rests_j.y) * deltas.y * d[1];
          const auto counts = [&](int j) { return j <= r && j >= start[second]; };
          const Pair<kParts> pair = in_parts<kParts>(counts(j) ? low : 0.f, counts(j + 1) ? high : 0.f);
#pragma unroll
          for (int part = 0; part < kParts; ++part) a[part][2 * half + second] = pair.part[part];
        }
      }
#pragma unroll
      for (int g = 0; g < B::kGroups; ++g) {
#pragma unroll
        for (int j = 0; j < kParts; ++j) {
          uint32_t columns[4];
          load_b<Lie::kAcross>(columns, x, j, 16 * k, column(g));
#pragma unroll
          for (int n = 0; n + j < kParts; ++n) multiply_16x16(y[g], a[n], columns);
        }
      }
    }

    const int64_t head = item.head(i);
    const auto outside = [&](const Tokens& t) { return pairs_of<T>(t, item.batch, item.first, head, dim); };
    const Pairs<T> z = outside(p.z), to = outside(kGated ? out.dz : out.y), dy = outside(out.dy),
                   gated = outside(out.gated);
#pragma unroll
    for (int g = 0; g < B::kGroups; ++g) {
      each_pair(y[g], [&](float* v, int second, int in) {
        const int r = row + first_row() + 8 * second, in_tile = column(g) + in, n = item.number(i) + in_tile;
        if (r >= item.rows || n >= dim) return;
        float2 d = {0.f, 0.f};
        if (p.D != nullptr)
          d = p.each_D ? float2{p.D[head * dim + n], n + 1 < dim ? p.D[head * dim + n + 1] : 0.f}
                       : float2{p.D[head], p.D[head]};
        const float2 at = x.template numbers<kParts>(r, in_tile);
        float low = fmaf(d.x, at.x, v[0]), high = fmaf(d.y, at.y, v[1]);
        const bool padding = start[second] == kTokens;
        if (padding) low = high = 0.f;
        if (p.z.data != nullptr) {
          const float2 zs = padding ? float2{0.f, 0.f} : z.read(r, n);
          const Gate first = gate_of(zs.x), next = gate_of(zs.y);
          if constexpr (kGated) {
            const float2 dys = padding ? float2{0.f, 0.f} : dy.read(r, n);
            gated.write(r, n, dys.x * first.value, dys.y * next.value);
            low *= dys.x * first.slope, high *= dys.y * next.slope;
          } else {
            low *= first.value, high *= next.value;
          }
        }
        to.write(r, n, low, high);
      });
    }
    wait_copies<0>();
  }
}

}  // namespace

void outputs(const Problem& p, const Plan& plan, const Outputs& out, float* memory, Stream stream) {
  const int64_t items = items_of(p, plan);
  if (items == 0 || p.dim == 0) return;
  kernels::with_dtype(p.type, [&]<class T>() {
    const auto start = [&]<bool kGated>() {
      kernels::gpu::launch_with_memory<&write_outputs<T, kGated>>(2 * Block<T>(p.state).all, items, kThreads, stream, p,
                                                                  plan, out, static_cast<const float*>(memory));
    };
    if (out.dy.data != nullptr)
      start.template operator()<true>();
    else
      start.template operator()<false>();
  });
}

}  // namespace mamba::ssd::gpu
