// Decoding on the CPU: keys and values in a cache, in rows of one piece or in pages, to which new ones may be added.
#pragma once

#include "kernels/attention/torch-ext/cpu.h"

namespace attention::cpu {

// What of it stays alive while the sequences are in use.
struct Decoding {
  std::vector<Tensor> held;
  std::vector<Sequence> sequences;
};

inline const int32_t* numbers_of(Decoding& d, Tensor t) {
  d.held.push_back(std::move(t));
  return static_cast<const int32_t*>(d.held.back().data_ptr());
}

inline Decoding decoding(Call& c, const Cache& cache, int64_t new_rows) {
  Decoding d;
  const int64_t batch = c.q.batch;
  const int32_t* lengths = numbers_of(d, as_int32(cache.lengths, batch, c.device));
  check(!(cache.block_table && cache.batch_idx), c.op,
        ": expected a block_table or cache_batch_idx; got both; a block_table already defines where a sequence is "
        "stored");
  const int32_t *table = nullptr, *entries = nullptr;
  int64_t blocks = 0;
  if (cache.block_table) {
    const Tensor& t = *cache.block_table;
    check_pages(t, batch, c.device);
    blocks = t.size(1);
    table = numbers_of(d, torch::stable::contiguous(t));
    c.problem.page = c.k.rows;
  } else if (cache.batch_idx) {
    entries = numbers_of(d, as_int32(*cache.batch_idx, batch, c.device));
  } else {
    check(c.k.batch >= batch, c.op, ": expected a cache of ", batch, " rows or more; got ", c.k.batch);
  }
  const int64_t most = table != nullptr ? blocks * c.k.rows : c.k.rows;
  for (int64_t b = 0; b < batch; ++b) {
    Sequence s{b, b, 0, 0, c.q.rows, 0, nullptr};
    if (lengths[b] >= 0) s.keys = lengths[b] + new_rows;  // below 0: an entry that pads the batch
    check(s.keys <= most, c.op, ": expected at most ", most, " tokens in entry ", b, " of the cache; got ", s.keys,
          table != nullptr ? "; give block_table more pages" : "; make the cache longer");
    if (entries != nullptr) s.key_batch = entries[b];
    check((s.key_batch >= 0 && s.key_batch < c.k.batch) || s.keys == 0 || table != nullptr, c.op,
          ": expected cache_batch_idx of 0 to ", c.k.batch - 1, "; got ", s.key_batch);
    if (table != nullptr) {
      s.pages = table + b * blocks;
      for (int64_t p = 0; p * c.k.rows < s.keys; ++p)
        check(s.pages[p] >= 0 && s.pages[p] < c.k.batch, c.op, ": expected pages of 0 to ", c.k.batch - 1,
              " in block_table; got ", s.pages[p], " for tokens in use");
    }
    d.sequences.push_back(s);
  }
  return d;
}

// The new rows behind those that are there.
inline void append(const Call& c, const Decoding& d, const Operand& cache, int64_t numbers, const View& fresh) {
  const int64_t bytes = kernels::size_of(c.dtype);
  for (const Sequence& s : d.sequences) {
    for (int64_t row = 0; row < fresh.rows && s.keys > 0; ++row) {
      const int64_t key = s.keys - fresh.rows + row;
      const int64_t entry = s.pages != nullptr ? s.pages[key / c.problem.page] : s.key_batch;
      const int64_t place = s.pages != nullptr ? key % c.problem.page : key;
      for (int64_t h = 0; h < fresh.heads; ++h) {
        const Strides &to = cache.strides, &from = fresh.operand.strides;
        std::memcpy(static_cast<char*>(cache.data) + (entry * to.batch + place * to.row + h * to.head) * bytes,
                    static_cast<const char*>(fresh.operand.data) +
                        (s.batch * from.batch + row * from.row + h * from.head) * bytes,
                    size_t(numbers * bytes));
      }
    }
  }
}

}  // namespace attention::cpu
