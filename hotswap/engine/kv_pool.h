// The memory of a set of sequences: keys, values and recurrent states of each, which join and leave one by one.
//
//   KvPool pool(model.device(), {.max_sequences = 4, .max_tokens = 512});
//   const int64_t sequence = pool.acquire();
//   KvStep step(pool, {{.sequence = sequence, .tokens = prompt}});
//   model({.step = &step.batch(), .memory = &step});
//   step.commit();                                    // only now the tokens count
//   pool.rollback(sequence, pool.length(sequence) - 2);
//
// Keys and values are in pages, [pages, page_size, kv_heads, head_dim] for each layer, made when its first tokens come.
// Without a page_size one page holds a whole sequence and grows; kernels then read it in one piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

#include "hotswap/layers/step_batch.h"

namespace hotswap {

struct KvPoolOptions {
  int64_t max_sequences = 1;
  int64_t max_tokens = 0;  // of one sequence. With pages: a limit. Without: room made at once; more is made as needed
  int64_t page_size = 0;   // tokens of a page; 0: one page a sequence
  int64_t pages = 0;       // with a page_size: of the whole pool; 0: as many as max_sequences of max_tokens need
};

// What a sequence adds in a step.
struct StepRow {
  int64_t sequence;
  std::vector<int64_t> tokens;  // at least one
  int64_t whole = 0;            // tokens of the text that they are a chunk of, from its beginning; 0: no chunk
  int64_t drawn = -1;    // not -1: the one token is this element of those drawn on the device, and no number here
  int64_t adapter = -1;  // see ForwardArguments::row_adapters
};

// Keys and values of some tokens of one layer, [tokens, kv_heads, head_dim] each; undefined where it has none.
struct KvTokens {
  Tensor k = {}, v = {};
};

struct KvUsage {
  int64_t pages = 0, pages_in_use = 0;  // without a page_size: of a sequence each
  int64_t tokens = 0;                   // of all sequences
};

class KvPool {
 public:
  // Error where the options contradict each other.
  KvPool(at::Device device, const KvPoolOptions& options);

  // An empty sequence's id. Error where max_sequences are there. Sequences of one company have rows side by side.
  int64_t acquire(int64_t company = 0);
  void release(int64_t sequence);
  int64_t length(int64_t sequence) const { return at(sequence).length; }
  int64_t row(int64_t sequence) const { return at(sequence).row; }  // rows have no gaps: release() moves others there
  std::vector<StepRow> by_row(std::vector<StepRow> rows) const;
  // Of its prompt, or a chunk of it: not the one token after others.
  bool is_of_prompt(const StepRow& row) const { return row.tokens.size() > 1 || length(row.sequence) == 0; }
  int64_t pages_for(int64_t tokens) const;  // of a sequence of that length; 0 without a page_size
  // Whether reserve() finds room.
  bool can_reserve(int64_t sequence, int64_t tokens) const;
  // Takes pages for `tokens` now; steps take what they need by themselves. Error where there is no room.
  void reserve(int64_t sequence, int64_t tokens);
  // Forgets the tokens from `length` on, which is not beyond length(). Error where a layer has a recurrent state,
  // unless `length` is 0: that state is of all tokens at once.
  void rollback(int64_t sequence, int64_t length);

  // Each row becomes a copy of row from[row], with its tokens and states. Error where sequences have pages, or where
  // there is not one number for each.
  void reorder(const std::vector<int64_t>& from);

  // Of tokens [first, first + count), which have run, in each layer. Views where the sequence is in one piece.
  std::vector<KvTokens> tokens_of(int64_t sequence, int64_t first, int64_t count);
  // Adds `count` tokens to the sequence as if they had run. `layers` as from tokens_of().
  void append(int64_t sequence, int64_t count, const std::vector<KvTokens>& layers);
  // The same where a sequence is in one piece -> views, as from tokens_of(), into which they are to be written.
  std::vector<KvTokens> append(int64_t sequence, int64_t count);

  int64_t free_sequences() const { return options_.max_sequences - static_cast<int64_t>(order_.size()); }
  KvUsage usage() const;
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }
  at::Device device() const { return device_; }
  bool one_page_each() const { return options_.page_size == 0; }
  int64_t page_tokens() const { return one_page_each() ? slab_tokens_ : options_.page_size; }
  bool recurs() const;  // whether a layer has a recurrent state

 private:
  friend class KvStep;
  friend class GuessStep;
  friend class RaggedStep;
  friend class StaticStep;
  friend class UniformStep;
  struct Entry {
    int64_t row = 0;  // of recurrent states, and the page where there is one a sequence
    int64_t length = 0;
    int64_t company = 0;
    std::vector<int32_t> pages;
  };
  struct Layer {
    Tensor k, v;  // [pages, page_size, kv_heads, head_dim], heads before tokens in memory; or undefined
    RecurrentStates states;
  };
  const Entry& at(int64_t sequence) const;
  Entry& at(int64_t sequence);
  void grow(int64_t tokens);
  void move_to(int64_t row, Entry& entry);
  void move_row(int64_t from, int64_t to, int64_t tokens);
  void clear_states(int64_t row);
  Layer& layer(int64_t index);
  int64_t missing_pages(const Entry& entry, int64_t tokens) const;
  int64_t reserve_more(int64_t sequence, int64_t count);
  std::pair<Tensor, Tensor> positions_of(const Entry& entry, int64_t first, int64_t count) const;
  void make_room(Layer& layer, const Tensor& k, const Tensor& v) const;

  at::Device device_;
  KvPoolOptions options_;
  int64_t slab_tokens_ = 0;  // room of a page that is a whole sequence's
  int64_t next_id_ = 0;
  std::unordered_map<int64_t, Entry> entries_;
  std::vector<int64_t> order_;  // sequences by row: rows have no gaps, so that all of them are one piece of memory
  std::set<int32_t> free_pages_;
  std::vector<Layer> layers_;
};

// Error where gradients would be recorded through what a step writes into a pool.
void check_without_gradients(const Tensor& k, const Tensor& v);

// One step of some of a pool's sequences, as many new tokens in each: the batch that a model reads, and its memory.
// What it writes counts once commit() is called. Without that keys and values are as they were; a recurrent state is
// not, and its sequence can only be released or rolled back to 0.
class KvStep : public StepMemory {
 public:
  // Error where rows differ in their number of tokens, some begin and others go on, or where the pool has no room.
  // drawn: int64 on the device, read where a row's token is one of them. exact_rows: as StepBatch's.
  KvStep(KvPool& pool, std::vector<StepRow> rows, const Tensor& drawn = {}, bool exact_rows = false);
  const StepBatch& batch() const { return batch_; }
  void commit();

  std::pair<Tensor, Tensor> update(int64_t layer, const Tensor& k, const Tensor& v) override;
  std::pair<Tensor, Tensor> writable_rows(int64_t layer, int64_t batch) override;
  RecurrentStates states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) override;

 private:
  void write(const Tensor& pages, const Tensor& fresh);
  KvPool& pool_;
  std::vector<StepRow> rows_;
  StepBatch batch_;
  Tensor page_of_, offset_of_;  // [tokens] int64: where each new token goes; made when first needed
  struct Copied {               // states of rows that are not side by side
    int64_t layer;
    RecurrentStates states;
  };
  std::vector<Copied> copied_;
};

}  // namespace hotswap
