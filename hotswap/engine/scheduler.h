// Which sequences run in the next step. This first form is one batch without preemption: a sequence joins at the next
// step if the pool has room for it, first come, first served, and leaves when it ends or by leave().
//
//   Scheduler scheduler(model, {.max_sequences = 8, .max_tokens = 512});
//   const auto greedy = std::make_shared<Sampler>(GenerationConfig(), model.device());
//   const int64_t id = scheduler.join({.tokens = prompt, .sampler = greedy, .stop = {.max_new_tokens = 50}});
//   while (!scheduler.idle()) {
//     for (const NewToken& token : scheduler.step()) std::cout << token.sequence << ": " << token.id << "\n";
//   }
//   const Sequence done = scheduler.take(id);
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "hotswap/engine/sequence.h"
#include "hotswap/engine/step_runner.h"

namespace hotswap {

struct SchedulerOptions {
  int64_t max_sequences = 1;  // that run at the same time; others wait
  int64_t max_tokens = 0;     // these two: see KvPoolOptions
  int64_t page_size = 0;
  int64_t chunk = 0;  // tokens of a prompt that one step runs; 0: all of it
  ForwardGroups groups = {};
};

struct NewToken {
  int64_t sequence, id;
  Finish finish = Finish::kNot;                          // whether the sequence ended with it
  std::optional<TokenLogprobs> logprobs = std::nullopt;  // where the sequence's row_sampler reports them
  std::string error = {};                                // why it failed; there is no token then
};

// The length of text from which on a model computes all of it again, because the frequencies of its rotary embedding
// change there and the keys in the cache were turned by the old ones; of Sequence::restart_length. 0: never.
int64_t restart_length(const CausalLM& model, int64_t prompt);

class Scheduler {
 public:
  Scheduler(CausalLM& model, const SchedulerOptions& options);
  // -> its id, larger than those before. Error on an empty prompt, no sampler, less than one new token, and on more
  // tokens than the pool's pages ever hold.
  int64_t join(Sequence sequence);
  void leave(int64_t sequence);  // ends it before the next step, whether it runs or waits; nothing where it has ended
  // Runs every sequence that has joined: the next chunk of its prompt, or its newest token. -> the new tokens of those
  // whose prompt is done, by id
  std::vector<NewToken> step();
  bool idle() const { return running_.empty() && waiting_.empty(); }
  bool admitted(int64_t id) const;  // whether it runs, or has ended: it waits no more
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const Sequence& sequence(int64_t id) const;
  Sequence take(int64_t id);  // one that has ended; its id is unknown afterwards
  KvPool& pool() { return pool_; }
  const StepRunner& runner() const { return runner_; }

 private:
  struct Entry {
    Sequence sequence;
    int64_t in_pool = -1;  // -1: it waits, or has ended
  };
  Entry& at(int64_t id);
  void admit();
  StepRow next_row(const Entry& entry) const;
  static int64_t longest(const Sequence& sequence);  // tokens that the pool holds of it at most
  std::vector<SampledToken> sampled(const std::vector<int64_t>& ids, const Tensor& logits);
  void sample_shared(const std::vector<const Sequence*>& sequences, const Tensor& logits,
                     std::vector<SampledToken>& tokens);
  NewToken append(int64_t id, SampledToken token);
  void end(int64_t id, Finish why);

  CausalLM& model_;
  SchedulerOptions options_;
  KvPool pool_;
  StepRunner runner_;
  int64_t next_id_ = 0;
  std::map<int64_t, Entry> entries_;
  std::vector<int64_t> running_;  // ids, rising
  std::deque<int64_t> waiting_;
};

}  // namespace hotswap
