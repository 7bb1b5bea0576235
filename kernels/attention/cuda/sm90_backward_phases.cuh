// Launches of an sm_90a backward: prepare, the products, finish.
#pragma once

#include "kernels/attention/cuda/attention.h"
#include "kernels/attention/cuda/launches.cuh"
#include "kernels/attention/cuda/sm90_backward_rows.cuh"

namespace attention::gpu {

// Where things are in the work space, in bytes.
struct BackwardSpace {
  int64_t slots, statistics, dq, dsinks, added, counter, order, bytes;

  template <class B>
  static BackwardSpace of(const Backward& a) {
    const Problem& p = a.problem;
    BackwardSpace s{.slots = slots_of(p.query_starts != nullptr, p.batch, p.query_rows, B::kRows)};
    const auto take = [&](int64_t& at, int64_t bytes) { at = s.bytes, s.bytes += divide_up(bytes, 256) * 256; };
    const int64_t tiles = s.slots * p.heads;
    take(s.statistics, tiles * 2 * B::kRows * int64_t{sizeof(float)});
    take(s.dq, tiles * B::kRows * B::kDim * int64_t{sizeof(float)});
    take(s.dsinks, p.sinks != nullptr ? tiles * int64_t{sizeof(float)} : 0);
    take(s.added, a.deterministic ? tiles * B::kAdded * int64_t{sizeof(int)} : 0);
    take(s.counter, sizeof(int));
    take(s.order, p.query_starts != nullptr ? SequenceOrder::bytes(p.batch) : 0);
    return s;
  }
};

// products(arguments, tiles of keys) launches what lies between.
template <class B, class Products>
void launch_backward(const Backward& a, void* workspace, Stream stream, const Products& products) {
  using Rows = typename B::Rows;
  const Problem& p = a.problem;
  const auto space = BackwardSpace::of<B>(a);
  const auto at = [&]<class P>(int64_t offset, P*) {
    return reinterpret_cast<P*>(static_cast<char*>(workspace) + offset);
  };
  auto *statistics = at(space.statistics, (float*){}), *dq = at(space.dq, (float*){}),
       *dsinks = at(space.dsinks, (float*){});
  int *added = nullptr, *counter = nullptr;
  if (a.deterministic && space.slots * p.heads > 0)
    added = at(space.added, (int*){}), counter = at(space.counter, (int*){});
  const bool packed = p.query_starts != nullptr;
  const Sequences sequences = sequences_of(p);
  const int64_t query_tiles = space.slots * p.heads;
  if (query_tiles > 0)
    launch(backward_prepare_kernel<Rows>, query_tiles, kRowThreads, stream,
           PrepareArguments{.out = a.out,
                            .dout = a.dout,
                            .lse = a.lse,
                            .dlse = a.dlse,
                            .sinks = p.sinks,
                            .statistics = statistics,
                            .dq = dq,
                            .dsinks = dsinks,
                            .added = added,
                            .counter = counter,
                            .sequences = sequences,
                            .dout_batch = a.dout_strides.batch,
                            .dout_row = a.dout_strides.row,
                            .dout_head = a.dout_strides.head,
                            .out_batch = a.out_strides.batch,
                            .out_row = a.out_strides.row,
                            .out_head = a.out_strides.head,
                            .query_slots = int(space.slots),
                            .heads = int(p.heads),
                            .value_dim = int(p.value_dim)});
  if (p.sinks != nullptr && p.heads > 0)
    launch(sum_dsinks_kernel, p.heads, kRowThreads, stream, a.dsinks, dsinks, int(space.slots), int(p.heads));

  const int64_t key_tiles = packed ? slots_of(true, p.batch, p.key_rows, B::kKeys) : divide_up(p.key_rows, B::kKeys);
  const int64_t key_heads = packed ? p.key_heads : p.batch * p.key_heads;
  // Causal: the first keys are seen by most rows, and their tiles take longest. Adding in order: the last ones first.
  const bool unequal = p.window_left == kNoLimit && p.window_right != kNoLimit;
  const SequenceOrder order{packed ? at(space.order, (int*){}) : nullptr, int(p.batch) + 1};
  if (packed && p.key_rows > 0 && key_heads > 0) order_by_keys(p, order, B::kKeys, B::kRows, stream);
  // Also no fewer tiles than run at once: those of the next section would be among them anyway.
  const int64_t at_once = divide_up(int64_t{multiprocessors()} * 5 / 4 / B::kBlocks, std::max<int64_t>(1, key_tiles));
  const int64_t together = section_key_heads(p, unequal || a.deterministic);
  const Sections sections = equal_sections(int(key_heads), int(unequal ? std::max(together, at_once) : together));
  // A tensor without elements has no map: it is never read then, so that any other one may stand in.
  const TensorShape k = shape_of(p, a.k, a.k_strides, p.key_rows, p.key_heads, p.dim);
  const TensorShape v = shape_of(p, a.v, a.v_strides, p.key_rows, p.key_heads, p.value_dim);
  const TensorShape q = shape_of(p, a.q, a.q_strides, p.query_rows, p.heads, p.dim);
  const TensorShape dout = shape_of(p, a.dout, a.dout_strides, p.query_rows, p.heads, p.value_dim);
  const bool no_queries = p.query_rows == 0 || p.heads == 0;
  if (p.key_rows > 0 && key_heads > 0) {
    const BackwardArguments arguments{
        .q = tensor_map(no_queries ? k : q, B::kQueryBox),
        .dout = tensor_map(no_queries ? v : dout, B::kQueryBox),
        .k = tensor_map(k, B::kKeyBox),
        .v = tensor_map(v, B::kKeyBox),
        .dk = a.dk,
        .dv = a.dv,
        .statistics = statistics,
        .dq = dq,
        .added = added,
        .counter = counter,
        .sequences = sequences,
        .order = {.tiles = int(key_tiles * key_heads),
                  .row_tiles = int(key_tiles),
                  .heads = int(key_heads),
                  .section_heads = sections.heads,
                  .last_rows_first = a.deterministic,
                  .larger_sections = sections.larger},
        .packed = order,
        .section_rows = unequal || a.deterministic ? int(kKeySectionBytes / bytes_of_row(p)) : 0,
        .query_slots = int(space.slots),
        .key_heads = int(p.key_heads),
        .group = int(p.heads / p.key_heads),
        .dim = int(p.dim),
        .value_dim = int(p.value_dim),
        .scale = p.scale,
        .score_scale = (p.softcap > 0 ? p.softcap : p.scale) * kLog2e,
        .cap_scale = p.softcap > 0 ? p.scale / p.softcap : 0.f,
    };
    products(arguments, key_tiles * key_heads);
  }
  if (query_tiles > 0)
    launch(backward_finish_kernel<Rows>, query_tiles, kRowThreads, stream,
           FinishArguments{.out = a.dq,
                           .dq = dq,
                           .sequences = sequences,
                           .query_slots = int(space.slots),
                           .heads = int(p.heads),
                           .dim = int(p.dim),
                           .scale = p.scale});
}

}  // namespace attention::gpu
