// The ops where their tensors are on the CPU.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/attention/cpu/plan.h"
#include "kernels/attention/torch-ext/arguments.h"
#include "kernels/common/cpu/pairs.h"

namespace attention::cpu {

inline const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(attention);
  return chosen;
}

// A thread's own memory, kept for its next call: fresh pages would cost as much as a short call's arithmetic.
inline float* thread_scratch(int64_t numbers) {
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t held = 0;
  if (held < numbers) {
    constexpr size_t kLine = 64;
    memory.reset();
    memory.reset(static_cast<float*>(std::aligned_alloc(kLine, (size_t(numbers) * 4 + kLine - 1) / kLine * kLine)));
    check(memory != nullptr, "attention: expected ", numbers * 4, " bytes; got none; free some memory");
    kernels::ask_for_huge_pages(memory.get(), numbers * 4);
    held = numbers;
  }
  return memory.get();
}

// unit(which, thread) for all units, each thread taking the next one when it is done with its last. alone: so little
// that a second thread costs more than it brings.
template <class Unit>
void run_units(int64_t units, bool alone, const Unit& unit) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t thread, int64_t) {
    for (int64_t n = next++; n < units; n = next++) unit(n, thread);
  };
  const int64_t threads = std::min<int64_t>(units, torch::stable::get_num_threads());
  if (alone || threads <= 1) return work(0, 1);
  torch::stable::parallel_for(0, threads, 1, work);
}

// Products of numbers that are bfloat16 as they come. Odd heads would end in half a pair.
inline bool takes_pairs(const Attention& a) {
  return a.dtype == DType::kBFloat16 && a.dim % 2 == 0 && a.value_dim % 2 == 0 && kernels::multiplies_pairs();
}

inline bool is_little(const Attention& a, const std::vector<Sequence>& sequences) {
  constexpr int64_t kLittle = int64_t{1} << 20;  // products: about 20 us of one core
  int64_t all = 0;
  for (const Sequence& s : sequences) all += s.rows * s.keys;
  return all * a.heads * (a.dim + a.value_dim) < kLittle;
}

inline void run_forward(Attention& a, const std::vector<Sequence>& sequences, int64_t num_splits = 0) {
  a.sequences = sequences.data();
  a.pairs = takes_pairs(a);
  const Plan plan = plan_forward(a, int64_t(sequences.size()), num_splits);
  const int64_t tiles = int64_t(plan.tiles.size()), streams = int64_t(plan.streams.size());
  const bool alone = is_little(a, sequences);
  std::optional<Tensor> memory;
  if (plan.slots > 0) memory = kernels::empty({plan.slots * stream_part(a)}, DType::kFloat32);
  auto* parts = plan.slots > 0 ? static_cast<float*>(memory->data_ptr()) : nullptr;
  run_units(tiles + streams, alone, [&](int64_t n, int64_t) {
    if (n < tiles) return table().forward(a, plan.tiles[n], thread_scratch(forward_scratch(a)));
    table().stream(a, plan.streams[n - tiles], parts, thread_scratch(stream_scratch(a)));
  });
  for (const Merge& merge : plan.merges) table().merge(a, merge, parts);
}

// dsinks: [heads], or null.
inline void run_backward(AttentionBackward& a, const std::vector<Sequence>& sequences, float* dsinks) {
  a.sequences = sequences.data();
  a.pairs = takes_pairs(a);
  const Plan plan = plan_backward(a, int64_t(sequences.size()));
  int64_t keys = 0;
  for (const Sequence& s : sequences) keys = std::max(keys, s.keys);
  const int64_t threads = torch::stable::get_num_threads(), apart = backward_part(a, keys), group = a.group();
  const int64_t units = int64_t(plan.tiles.size());
  Tensor memory = kernels::empty({(plan.slots + std::min(threads, units)) * apart}, DType::kFloat32);
  auto* parts = static_cast<float*>(memory.data_ptr());
  std::vector<double> sinks(dsinks == nullptr ? 0 : size_t(units * group));
  const bool alone = is_little(a, sequences);
  std::vector<int64_t> last(size_t(std::min(threads, units)), -1);  // unit of each thread
  run_units(units, alone, [&](int64_t n, int64_t thread) {
    const Item& item = plan.tiles[n];
    const bool same_keys = last[thread] >= 0 && plan.tiles[last[thread]].sequence == item.sequence &&
                           plan.tiles[last[thread]].key_head == item.key_head;
    last[thread] = n;
    float* part = parts + (item.slot >= 0 ? item.slot : plan.slots + thread) * apart;
    table().backward(a, item,
                     {.part = part,
                      .dsinks = dsinks == nullptr ? nullptr : &sinks[n * group],
                      .scratch = thread_scratch(backward_scratch(a, keys)),
                      .same_keys = same_keys});
    if (item.slot >= 0) return;
    const Span seen = keys_of(a, a.sequences[item.sequence], item.first, item.end);
    table().write_gradients(a, {item.sequence, item.key_head, 0, 1}, part, apart, &seen);
  });
  run_units(int64_t(plan.merges.size()), alone, [&](int64_t n, int64_t) {
    const Merge& merge = plan.merges[n];
    table().write_gradients(a, merge, parts + merge.slot * apart, apart, &plan.seen[merge.slot]);
  });
  if (dsinks == nullptr) return;
  std::vector<double> sums(a.heads);
  for (int64_t n = 0; n < units; ++n) {
    for (int64_t h = 0; h < group; ++h) sums[plan.tiles[n].key_head * group + h] += sinks[n * group + h];
  }
  for (int64_t h = 0; h < a.heads; ++h) dsinks[h] = float(sums[h]);
}

// ---- which sequences there are

inline std::vector<Sequence> dense_sequences(const Call& c) {
  check(c.q.batch == c.k.batch, c.op, ": expected q and k of one batch size; got ", c.q.batch, " and ", c.k.batch);
  std::vector<Sequence> all;
  for (int64_t b = 0; b < c.q.batch; ++b) all.push_back({b, b, 0, 0, c.q.rows, c.k.rows, nullptr});
  return all;
}

inline std::vector<Sequence> packed_sequences(const Call& c, const Packed& p) {
  const int64_t ends = ends_of(p);
  const Tensor cu_q = as_int32(p.cu_q, ends, c.device);
  const Tensor cu_k = as_int32(p.cu_k, ends, c.device);
  std::optional<Tensor> used;
  if (p.used_k) used = as_int32(*p.used_k, ends - 1, c.device);
  const auto *q = static_cast<const int32_t*>(cu_q.data_ptr()), *k = static_cast<const int32_t*>(cu_k.data_ptr());
  const auto* u = used ? static_cast<const int32_t*>(used->data_ptr()) : nullptr;
  const auto grows = [&](const int32_t* cu, int64_t rows, const char* name) {
    bool ok = cu[0] == 0 && cu[ends - 1] <= rows;
    for (int64_t n = 0; n + 1 < ends; ++n) ok = ok && cu[n] <= cu[n + 1];
    check(ok, c.op, ": expected ", name, " that begins with 0, never falls and ends at ", rows, " at most; got ", cu[0],
          ", ..., ", cu[ends - 1], "; they are sums of the sequences' lengths");
  };
  grows(q, c.q.rows, "cu_seqlens_q");
  grows(k, c.k.rows, "cu_seqlens_k");
  std::vector<Sequence> all;
  for (int64_t n = 0; n + 1 < ends; ++n) {
    const int64_t keys = k[n + 1] - k[n];
    check(u == nullptr || (u[n] >= 0 && u[n] <= keys), c.op, ": expected seqused_k of 0 to ", keys, " for sequence ", n,
          "; got ", u == nullptr ? 0 : u[n]);
    all.push_back({0, 0, q[n], k[n], q[n + 1] - q[n], u == nullptr ? keys : u[n], nullptr});
  }
  return all;
}

}  // namespace attention::cpu
