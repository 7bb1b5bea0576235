// What the threads do in a call: units of work and where their sums meet. Decided by shapes and lengths alone, so that
// a call gives the same bits with any number of threads.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/attention/cpu/span.h"

namespace attention::cpu {

struct Plan {
  std::vector<Item> tiles, streams;  // forward: rows with many queries; keys where there are few
  std::vector<Merge> merges;         // of streams; of a backward's tiles that share dk and dv
  int64_t slots = 0;                 // parts of sums that are there at the same time
  std::vector<Span> seen;            // [slots] of a backward: keys that a part has
};

constexpr int64_t kMaxStreams = 32;        // of a key head: units of work that keep a machine's threads busy
constexpr int64_t kLeastStreamKeys = 512;  // below, merging parts costs more than a second thread brings
constexpr int64_t kWantedParts = 16;       // of a backward: each holds a dk and dv of its own

// Key tiles that the rows [first, end) read.
inline int64_t tile_cost(const Attention& a, const Sequence& s, int64_t first, int64_t end) {
  const Span seen = keys_of(a, s, first, end);
  return seen.empty() ? 0 : (seen.end - seen.first + kTileKeys - 1) / kTileKeys;
}

// num_splits: of each key head's keys, 0: as their number suggests and nothing else, so that a sequence has its bits in
// any company.
inline int64_t keys_per_stream(int64_t keys, int64_t num_splits) {
  const int64_t splits = num_splits > 0 ? num_splits : kMaxStreams;
  const int64_t each = (keys + splits - 1) / splits;
  return num_splits > 0 ? std::max<int64_t>(1, each) : std::max(kLeastStreamKeys, padded(each));
}

inline void sort_longest_first(std::vector<std::pair<int64_t, Item>>& costs, std::vector<Item>& items) {
  std::stable_sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  items.reserve(costs.size());
  for (const auto& [cost, item] : costs) items.push_back(item);
}

inline Plan plan_forward(const Attention& a, int64_t sequences, int64_t num_splits = 0) {
  Plan plan;
  std::vector<std::pair<int64_t, Item>> tiles;
  for (int64_t n = 0; n < sequences; ++n) {
    const Sequence& s = a.sequences[n];
    if (s.rows == 0) continue;
    const bool streams = s.rows * a.group() <= kStreamRows;
    const Span seen = keys_of(a, s, 0, s.rows);
    const int64_t step = streams ? keys_per_stream(seen.end - seen.first, num_splits) : tile_positions(a);
    for (int64_t head = 0; head < a.key_heads; ++head) {
      if (!streams) {
        for (int64_t row = 0; row < s.rows; row += step) {
          const Item item{n, head, row, std::min(s.rows, row + step), -1};
          tiles.emplace_back(tile_cost(a, s, item.first, item.end), item);
        }
        continue;
      }
      const int64_t slot = plan.slots;
      int64_t key = seen.first;
      do {  // a row without keys has its part, too
        plan.streams.push_back({n, head, key, std::min(seen.end, key + step), plan.slots++});
        key += step;
      } while (key < seen.end);
      plan.merges.push_back({n, head, slot, plan.slots});
    }
  }
  sort_longest_first(tiles, plan.tiles);
  return plan;
}

// Rows of a sequence and key head go to one unit, or to several of equal cost with a dk and dv each. These follow each
// other, so that a thread that takes two lays out their keys once.
inline Plan plan_backward(const Attention& a, int64_t sequences) {
  Plan plan;
  std::vector<std::pair<int64_t, Item>> tiles;
  const int64_t units = std::max<int64_t>(1, sequences * a.key_heads), parts = (kWantedParts + units - 1) / units;
  const int64_t step = tile_positions(a);
  for (int64_t n = 0; n < sequences; ++n) {
    const Sequence& s = a.sequences[n];
    int64_t whole = 0;
    for (int64_t row = 0; row < s.rows; row += step) whole += tile_cost(a, s, row, std::min(s.rows, row + step));
    for (int64_t head = 0; head < a.key_heads; ++head) {
      const int64_t slot = plan.slots;
      int64_t cost = 0, first = 0;
      for (int64_t row = 0; row < s.rows; row += step) {
        const int64_t end = std::min(s.rows, row + step), part = plan.slots - slot;  // parts before this one
        cost += tile_cost(a, s, row, end);
        if (end < s.rows && cost * parts < whole * (part + 1)) continue;
        tiles.push_back({whole, {n, head, first, end, plan.slots++}});
        plan.seen.push_back(keys_of(a, s, first, end));
        first = end;
      }
      if (plan.slots - slot > 1) {
        plan.merges.push_back({n, head, slot, plan.slots});
      } else if (plan.slots > slot) {  // who computes it writes it
        tiles.back().second.slot = -1;
        plan.slots = slot;
        plan.seen.pop_back();
      }
    }
  }
  sort_longest_first(tiles, plan.tiles);
  return plan;
}

}  // namespace attention::cpu
