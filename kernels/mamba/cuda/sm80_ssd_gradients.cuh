// State space duality on a GPU: the gradients of a chunk's tokens (ssd_plan.h; the formulas are in ssd.h). Tokens j are
// rows, tokens i >= j columns: G_ji = B_j . C_i and E_ji = x_j . dy_i.
#pragma once

#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/sm80_ssd_tile.cuh"

namespace mamba::ssd::gpu {

// kStates: the most elements of a state's row, for which a block's threads hold sums of dB and dC in registers.
template <class T, int kStates>
struct GradientBlock {
  using Of = Tile<T>;
  static constexpr int kColumnWarps = Of::kParts == 1 ? 4 : 2, kWarps = Of::kRowWarps * kColumnWarps;
  static constexpr int kThreads = 32 * kWarps, kEach = kThreads / Of::kTokens;  // threads a token
  static constexpr int kStateGroups = kStates / 16 / kColumnWarps, kAllGroups = Of::kTokens / 16;
  static constexpr int kGroups = Of::kTileDim / 16 / kColumnWarps, kTokenGroups = kAllGroups / kColumnWarps;

  // Of one head, from all its tiles; rows are a thread's to read at once.
  struct TokenSums {
    float between[Of::kTokens][Of::kRowWarps];  // [k]: of M_ji over rows j < k of a warp, columns i >= k of k's group
    float later[Of::kTokens][kAllGroups];       // [j]: of M_ji over a group's columns
    float entered[Of::kTokens][kColumnWarps];   // parts of e_i dy_i . (H C_i)
    float left[Of::kTokens][kColumnWarps];      // of r_j Δ_j x_j . (dH B_j)
    float through[Of::kTokens][kColumnWarps];   // of v_j . x_j
    float kept[kWarps], skipped[kWarps];        // of <H, dH>, and of dy . x
    int start[Of::kTokens];
  };

  // Shared memory, in 16-bit elements. One stage where two do not fit.
  int tokens, state, steps, stage, group, triangle, stages, all;
  __host__ __device__ GradientBlock(int64_t states, int64_t most)
      : tokens(tile_elements(Of::kParts, Of::kTokens, Of::kTileDim)),
        state(tile_elements(Of::kParts, Of::kTileDim, int(states))),
        steps(2 * kStepArrays * Of::kTokens),
        stage(2 * tokens + 2 * state + steps),
        group(tile_elements(Of::kParts, Of::kTokens, int(states))),
        triangle(tile_elements(Of::kParts, Of::kTokens, Of::kTokens)),
        stages(1),
        all(0) {
    const int rest = 2 * group + triangle + int(sizeof(TokenSums)) / 2;
    stages = 2 * (2 * stage + rest) <= most ? 2 : 1;
    all = stages * stage + rest;
  }
};

template <class T, int kStates, bool kPlain>
__global__ void __launch_bounds__(GradientBlock<T, kStates>::kThreads)
    write_gradients(const ssd::Backward a, const Plan plan, const Tokens dys, float* memory,
                    const GradientBlock<T, kStates> block) {
  using Of = Tile<T>;
  using B = GradientBlock<T, kStates>;
  constexpr int kParts = Of::kParts, kTokens = Of::kTokens, kTileDim = Of::kTileDim, kThreads = B::kThreads;
  constexpr int kRowWarps = Of::kRowWarps, kColumnWarps = B::kColumnWarps;
  extern __shared__ __align__(16) BFloat16 shared[];

  // ---- prologue: rows and columns of this warp, shared memory by name
  const Problem& p = a.of;
  const Item<T> item(p, plan);
  const int states = int(p.state), dim = int(p.dim), width = padded(states);
  const int warp = warp_of(), row_warp = warp % kRowWarps, row = row_warp * 16, column_warp = warp / kRowWarps;
  const int lane = lane_of(), my_row = row + first_row();
  const auto column = [&](int g) { return (g * kColumnWarps + column_warp) * 16; };

  const auto stage_of = [&](int i) { return shared + i % block.stages * block.stage; };
  const auto x_of = [&](int i) { return tile(stage_of(i), kTokens, kTileDim); };
  const auto dy_of = [&](int i) { return tile(stage_of(i) + block.tokens, kTokens, kTileDim); };
  const auto state_of = [&](int i) { return tile(stage_of(i) + 2 * block.tokens, kTileDim, states); };
  const auto dstate_of = [&](int i) { return tile(stage_of(i) + 2 * block.tokens + block.state, kTileDim, states); };
  const auto steps_of = [&](int i) {
    return reinterpret_cast<float*>(stage_of(i) + 2 * block.tokens + 2 * block.state);
  };
  BFloat16* const rest = shared + block.stages * block.stage;
  const Rows b = tile(rest, kTokens, states), c = tile(rest + block.group, kTokens, states);
  const Rows triangle = tile(rest + 2 * block.group, kTokens, kTokens);
  auto& m = *reinterpret_cast<typename B::TokenSums*>(rest + 2 * block.group + block.triangle);

  // ---- prologue: how a stage is loaded
  const int* starts =
      reinterpret_cast<const int*>(memory + plan.starts) + (item.batch * plan.chunks + item.chunk) * (kTokens + 1);
  const bool packed = !kPlain && p.sequence.data != nullptr;
  const int* begins = packed ? starts : nullptr;
  const Pieces<kThreads> token_pieces(kTileDim, kTokens), state_pieces(width, kTokens);
  const auto load = [&](int i) {
    const auto tokens = [&](const Rows& to, const Tokens& t) {
      const Source<T> from = source_of<T>(t, item.batch, item.first, item.head(i), item.rows, dim, begins);
      if constexpr (kPlain)
        load_plain<kTokens, kTileDim, kThreads>(to, from.data + item.number(i), from.step, item.rows);
      else
        load_tile<T, kTokens>(to, from_column(from, item.number(i), kTileDim), token_pieces);
    };
    tokens(x_of(i), p.x), tokens(dy_of(i), dys);
    const int64_t at = item.of_chunk(p, plan, i);
    const auto state = [&](const Rows& to, int64_t from) {
      load_state<kParts, kTileDim, kPlain>(to, reinterpret_cast<const BFloat16*>(memory + from) + at * plan.state_entry,
                                           item.number(i), dim, int(plan.state8), state_pieces);
    };
    state(state_of(i), plan.states), state(dstate_of(i), plan.dstates);
    load_floats_early<kThreads>(steps_of(i), memory + plan.steps + at * plan.step_row, kStepArrays * kTokens);
  };
  const auto load_group = [&](const Rows& to, const Tokens& t) {
    load_tile<T, kTokens>(to, source_of<T>(t, item.batch, item.first, item.group, item.rows, states, begins),
                          state_pieces);
  };

  // ---- prologue: B, C and the first stages are loaded; the pairs C_i B_j, which all heads of the block share
  load_group(b, p.B), load_group(c, p.C);
  if (int(threadIdx.x) < kTokens) m.start[threadIdx.x] = starts[threadIdx.x];
  cp_async_commit();
  for (int i = 0; i < block.stages; ++i) {
    if (i < item.count) load(i);
    cp_async_commit();
  }
  cp_async_wait<0>();
  __syncthreads();

  const auto above = [&](int g) { return column(g) + 15 < row; };  // of columns before all rows: i < j
  Sums dots[B::kTokenGroups] = {}, ddots[B::kTokenGroups] = {}, db[B::kStateGroups] = {}, dc[B::kStateGroups] = {};
  multiply<kParts, Major::kK, Major::kK>(dots, b, row, c, width, column, above);

  // ---- main loop: one head's tile of the chunk a pass
  for (int i = 0; i < item.count; ++i) {
    if (block.stages == 2)
      cp_async_wait<1>();
    else
      cp_async_wait<0>();
    __syncthreads();
    const Rows x = x_of(i), dy = dy_of(i), h = state_of(i), dh = dstate_of(i);
    const float* steps = steps_of(i);
    const auto step = [&](StepArray array, int t) { return steps[array * kTokens + t]; };
    const bool first_tile = item.number(i) == 0, last_tile = item.number(i) + kTileDim >= dim;
    const auto add = [&](float& to, float v) { to = first_tile ? v : to + v; };

    // ---- pairs of tokens: G T for dx, dG, and sums of G dG
    float skipped = 0.f;
    {
      Sums e[B::kTokenGroups] = {};
      multiply<kParts, Major::kK, Major::kK>(e, x, row, dy, kTileDim, column, above);
      const Decayed<kParts> mine[2] = {{steps, kTokens, my_row}, {steps, kTokens, my_row + 8}};
      const float deltas[2] = {step(kDelta, my_row), step(kDelta, my_row + 8)};
#pragma unroll
      for (int g = 0; g < B::kTokenGroups; ++g) {
        const int first_column = column(g), group = first_column / 16;
        const bool diagonal = first_column == row;
        if (above(g)) {  // i < j all
          each_pair(e[g], [&](float*, int second, int in) {
            triangle.set<kParts>(my_row + 8 * second, first_column + in, 0.f, 0.f);
          });
          if (lane % 4 == 0) add(m.later[my_row][group], 0.f), add(m.later[my_row + 8][group], 0.f);
          if (lane < 16) add(m.between[first_column + lane][row_warp], 0.f);
          continue;
        }
        each_pair(e[g], [&](float* v, int second, int in) {
          const int j = my_row + 8 * second, i_first = first_column + in;
          float* dg = &ddots[g].d[0][0] + (v - &e[g].d[0][0]);
          const float* dot = &dots[g].d[0][0] + (v - &e[g].d[0][0]);
          float gt[2];
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            float t = decay(Decayed<kParts>(steps, kTokens, i_first + n), mine[second]);
            if (diagonal && i_first + n == j) skipped += v[n];
            if ((diagonal && i_first + n < j) || (packed && m.start[i_first + n] > j)) t = 0.f;
            gt[n] = dot[n] * t;
            const float d = t * (deltas[second] * v[n]);
            dg[n] += d;
            v[n] = dot[n] * d;
          }
          triangle.set<kParts>(j, i_first, gt[0], gt[1]);
        });
        // v: sums over the group's columns from each on; then over the warp's rows before it
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          float after = 0.f;  // the columns behind this block
#pragma unroll
          for (int half = 1; half >= 0; --half) {
            float* v = &e[g].d[half][2 * second];
            const float two = v[0] + v[1];
            float on = two, other = __shfl_down_sync(kAllLanes, on, 1, 4);
            if (lane % 4 < 3) on += other;
            other = __shfl_down_sync(kAllLanes, on, 2, 4);
            if (lane % 4 < 2) on += other;
            other = __shfl_down_sync(kAllLanes, on, 1, 4);
            const float behind = after + (lane % 4 < 3 ? other : 0.f);
            after += __shfl_sync(kAllLanes, on, lane & ~3);
            v[1] += behind, v[0] = behind + two;
          }
          if (lane % 4 == 0) add(m.later[my_row + 8 * second][group], after);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const int k = first_column + 8 * half + lane % 4 * 2 + n;
            const float first = e[g].d[half][n], next = e[g].d[half][2 + n];
            float sum = diagonal ? (my_row < k ? first : 0.f) + (my_row + 8 < k ? next : 0.f) : first + next;
#pragma unroll
            for (int o = 4; o < 32; o *= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
            if (lane < 4) add(m.between[k][row_warp], sum);
          }
        }
      }
    }

    // ---- through the states: dC_i = e_i H^T dy_i, dB_j = r_j Δ_j dH^T x_j; rows of both are this warp's
    const auto through_state = [&](Sums(&to)[B::kStateGroups], const Rows& tokens, const Rows& state,
                                   const float(&weights)[2], const Rows* dot_with, float(&dots_with)[2]) {
      uint32_t rows[kTileDim / 16][kParts][4];
#pragma unroll
      for (int k = 0; k < kTileDim / 16; ++k) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) load_a<Major::kK>(rows[k][part], tokens, part, row, 16 * k);
      }
#pragma unroll
      for (int g = 0; g < B::kStateGroups; ++g) {
        if (column(g) >= width) continue;
        Sums s = {};
#pragma unroll
        for (int k = 0; k < kTileDim / 16; ++k) multiply_parts<Major::kMN>(s, rows[k], state, 16 * k, column(g));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int second = 0; second < 2; ++second) {
            const float low = weights[second] * s.d[half][2 * second],
                        high = weights[second] * s.d[half][2 * second + 1];
            to[g].d[half][2 * second] += low, to[g].d[half][2 * second + 1] += high;
            if (dot_with == nullptr) continue;
            const float2 v = dot_with->elements<kParts>(my_row + 8 * second, column(g) + 8 * half + lane % 4 * 2);
            dots_with[second] = fmaf(low, v.x, fmaf(high, v.y, dots_with[second]));
          }
        }
      }
    };
    {
      float entered[2] = {}, none[2] = {};
      const float enters[2] = {step(kEnter, my_row), step(kEnter, my_row + 8)};
      through_state(dc, dy, h, enters, &c, entered);
      const float weights[2] = {step(kWeight, my_row), step(kWeight, my_row + 8)};
      through_state(db, x, dh, weights, nullptr, none);
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const float sum = row_sum(entered[second]);
        if (lane % 4 == 0) add(m.entered[my_row + 8 * second][column_warp], sum);
      }
    }
    {
      float sum = 0.f;  // <H, dH>
      for (int r = state_pieces.row; r < kTileDim; r += state_pieces.rows) {
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
          const float2 u = h.elements<kParts>(r, state_pieces.column + n);
          const float2 v = dh.elements<kParts>(r, state_pieces.column + n);
          sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
        }
      }
      sum = warp_sum(sum), skipped = warp_sum(skipped);
      if (lane == 0) add(m.kept[warp], sum), add(m.skipped[warp], skipped);
    }
    // dD: four pairs of columns a warp, eight threads beside each other over the rows
    if (!kPlain && p.D != nullptr && p.each_D) {
      for (int pair = warp * 4 + lane % 4; pair < kTileDim / 2; pair += 4 * B::kWarps) {
        float2 sum = {0.f, 0.f};
        for (int r = lane / 4; r < kTokens; r += 8) {
          const float2 u = x.elements<kParts>(r, 2 * pair), v = dy.elements<kParts>(r, 2 * pair);
          sum.x = fmaf(u.x, v.x, sum.x), sum.y = fmaf(u.y, v.y, sum.y);
        }
#pragma unroll
        for (int o = 4; o < 32; o *= 2) {
          sum.x += __shfl_xor_sync(kAllLanes, sum.x, o), sum.y += __shfl_xor_sync(kAllLanes, sum.y, o);
        }
        const int n = item.number(i) + 2 * pair;
        float* to = memory + plan.number_sums + item.of_chunk(p, plan, i) * dim + n;
        if (lane < 4 && n < dim) to[0] = sum.x;
        if (lane < 4 && n + 1 < dim) to[1] = sum.y;
      }
    }
    __syncthreads();

    // ---- v_j = r_j dH B_j + sum of G T dy, dx_j = Δ_j v_j + D dy_j
    {
      Sums v[B::kGroups] = {};
      multiply<kParts, Major::kK, Major::kK>(v, b, row, dh, width, column);
      float left[2] = {}, through[2] = {};
      const float leaves[2] = {step(kLeave, my_row), step(kLeave, my_row + 8)};
#pragma unroll
      for (int g = 0; g < B::kGroups; ++g) {
        each_pair(v[g], [&](float* d, int second, int in) {
          const int j = my_row + 8 * second;
          d[0] *= leaves[second], d[1] *= leaves[second];
          const float2 at = x.elements<kParts>(j, column(g) + in);
          left[second] = fmaf(d[0], at.x, fmaf(d[1], at.y, left[second]));
        });
      }
#pragma unroll
      for (int k = 0; k < kTokens; k += 16) {  // columns i of rows j <= i alone
        if (k < row) continue;
        uint32_t rows[kParts][4];
#pragma unroll
        for (int part = 0; part < kParts; ++part) load_a<Major::kK>(rows[part], triangle, part, row, k);
#pragma unroll
        for (int g = 0; g < B::kGroups; ++g) multiply_parts<Major::kMN>(v[g], rows, dy, k, column(g));
      }
      const int64_t head = item.head(i);
      const int first_number = item.number(i);
      const Outside<T> dx = outside_of<T>(a.dx, item.batch, item.first, head, my_row, item.rows, first_number, dim);
      const Skip skip = skip_of<kPlain>(p, head, first_number);
      const float deltas[2] = {step(kDelta, my_row), step(kDelta, my_row + 8)};
#pragma unroll
      for (int g = 0; g < B::kGroups; ++g) {
        each_pair(v[g], [&](float* d, int second, int in) {
          const int j = my_row + 8 * second, n = column(g) + in;
          const float2 at = x.elements<kParts>(j, n), dys = dy.elements<kParts>(j, n);
          through[second] = fmaf(d[0], at.x, fmaf(d[1], at.y, through[second]));
          d[0] = fmaf(deltas[second], d[0], skip.at(n, dx.columns) * dys.x);
          d[1] = fmaf(deltas[second], d[1], skip.at(n + 1, dx.columns) * dys.y);
        });
        write_sums(dx, v[g], column(g));
      }
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int j = my_row + 8 * second;
        const float l = deltas[second] * row_sum(left[second]), t = row_sum(through[second]);
        if (lane % 4 == 0) add(m.left[j][column_warp], l), add(m.through[j][column_warp], t);
      }
    }
    // This stage's steps are read below: into registers before its place is filled again.
    const int k = int(threadIdx.x) / B::kEach, part = int(threadIdx.x) % B::kEach;
    const float delta_k = step(kDelta, k), slope_k = step(kSlope, k);
    __syncthreads();
    if (i + block.stages < item.count) load(i + block.stages);
    cp_async_commit();

    // ---- dl_k and what comes of it: kEach threads a token
    if (last_tile) {
      const int64_t at = item.of_chunk(p, plan, i), head = item.head(i);
      const auto over = [](const float& first, int count) {
        float sum = 0.f;
        for (int n = 0; n < count; ++n) sum += (&first)[n];
        return sum;
      };
      float sum = 0.f;
#pragma unroll 4
      for (int t = part; t < kTokens; t += B::kEach) {
        float pairs = over(m.left[t][0], kColumnWarps);
#pragma unroll
        for (int g = 1; g < B::kAllGroups; ++g) pairs += g > k / 16 ? m.later[t][g] : 0.f;
        const float after = over(m.entered[t][0], kColumnWarps);
        sum += t < k ? pairs : after;
      }
      if (part == 0) sum += over(m.between[k][0], kRowWarps);
#pragma unroll
      for (int o = 1; o < B::kEach; o *= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
      const float stays = memory[plan.steps + at * plan.step_row + kStepArrays * kTokens];
      const float dl = sum + stays * over(m.kept[0], B::kWarps);
      const float ddt = (over(m.through[k][0], kColumnWarps) + p.A[head] * dl) * slope_k;
      if (part == 0 && k < item.rows) {
        const int64_t to = item.batch * a.ddt.batch + (item.first + k) * a.ddt.step + head * a.ddt.head;
        store_any(a.ddt.data, p.dt_type, to, ddt);
      }
      const float da = warp_sum(part == 0 ? delta_k * dl : 0.f), dbias = warp_sum(part == 0 ? ddt : 0.f);
      if (lane == 0) {
        const int64_t which = p.batch * plan.chunks * plan.sum_rows * p.heads;
        float* sums =
            memory + plan.head_sums + ((item.batch * plan.chunks + item.chunk) * plan.sum_rows + warp) * p.heads + head;
        sums[kOfA * which] = da, sums[kOfBias * which] = dbias, sums[kOfD * which] = m.skipped[warp];
      }
    }
  }

  // ---- epilogue: dB and dC of the block, what came through dG of all its heads, once
  __syncthreads();
#pragma unroll
  for (int g = 0; g < B::kTokenGroups; ++g) {
    each_pair(ddots[g], [&](float* v, int second, int in) {
      triangle.set<kParts>(my_row + 8 * second, column(g) + in, v[0], v[1]);
    });
  }
  __syncthreads();
  const auto wide = [&](int g) { return column(g) >= width; };
  multiply<kParts, Major::kK, Major::kMN>(db, triangle, row, c, kTokens, column, wide);
  multiply<kParts, Major::kMN, Major::kMN>(dc, triangle, row, b, kTokens, column, wide);
  const int64_t count = p.batch * p.length * p.groups * p.state;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int g = 0; g < B::kStateGroups; ++g) {
      if (wide(g)) continue;
      each_pair(which == 0 ? db[g] : dc[g], [&](float* v, int second, int in) {
        const int r = my_row + 8 * second, n = column(g) + in;
        if (r >= item.rows || n >= states) return;
        const int64_t token = (item.batch * p.length + item.first + r) * p.groups + item.group;
        float* to = memory + plan.token_sums + (which * count + token * states) * plan.blocks + item.block * states + n;
        to[0] = v[0];
        if (n + 1 < states) to[1] = v[1];
      });
    }
  }
}

template <class T, int kStates, bool kPlain>
void start_gradients(const ssd::Backward& a, const Plan& plan, const Tokens& dy, float* memory, Stream stream) {
  const int64_t items = items_of(a.of, plan);
  const GradientBlock<T, kStates> block(a.of.state, kernels::gpu::attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>());
  kernels::gpu::launch_with_memory<&write_gradients<T, kStates, kPlain>>(2 * block.all, items, block.kThreads, stream,
                                                                         a, plan, dy, memory, block);
}

}  // namespace mamba::ssd::gpu
