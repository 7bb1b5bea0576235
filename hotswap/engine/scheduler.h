// Which sequences run in the next step: one joins at the next step if the pool has room for its tokens, first come,
// first served, and leaves when it ends or by leave(). Where the pool's pages do not suffice for all that run, the
// youngest is preempted: it gives its pages back, waits, and then runs its tokens again. The oldest never is, so that
// all end. Keys and values of prompts are kept for those that begin alike (prefix_cache.h).
//
// Where the device draws all tokens of a step, the host launches the next step, whose input they are, before it reads
// them: the device does not wait for the host. A sequence that then turns out to have ended is in one step too many,
// whose token is dropped. Every sequence has the tokens that it has without that. Not with pages, where the next step
// may have to preempt a sequence whose token is not read yet. What a constraint allows next the host finds out from the
// token before while the device runs the forward: such a step's draw is launched after that token was read.
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
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/engine/batch_sampler.h"
#include "hotswap/engine/prefix_cache.h"
#include "hotswap/engine/sequence.h"
#include "hotswap/engine/step_runner.h"
#include "hotswap/engine/token_reader.h"

namespace hotswap {

struct SchedulerOptions {
  int64_t max_sequences = 1;  // that run at the same time; others wait
  int64_t max_tokens = 0;     // these three: see KvPoolOptions
  int64_t page_size = 0;
  int64_t pages = 0;
  // Tokens of a prompt that one step runs, and of several in total no more than twice as many: those that came first
  // before the others. 0: all of all.
  int64_t chunk = 0;
  ForwardGroups groups = {};
  bool capture = true;                           // where the runner can
  std::optional<bool> run_ahead = std::nullopt;  // unset: on a GPU; a CPU has nothing else to do meanwhile
  // Tokens whose keys and values are kept for sequences that begin alike; 0: none, and none where keys depend on how
  // long their text is.
  int64_t prefix_tokens = 0;
  // Forwards are the same whatever was kept or preempted before, so that their bits are: only whole chunks of prompts
  // are kept, and after a preemption each token runs in a forward as at first. Beside groups that are exact.
  bool exact = false;
};

struct SchedulerCounts {
  int64_t preemptions = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;  // tokens of prompts, and those of them that were kept
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
  // whose prompt is done, by id; the next step may be on its way by then
  std::vector<NewToken> step();
  bool idle() const { return running_.empty() && waiting_.empty(); }
  bool admitted(int64_t id) const;  // whether it runs, or has ended: it waits no more
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const Sequence& sequence(int64_t id) const;
  Sequence take(int64_t id);  // one that has ended; its id is unknown afterwards
  const SchedulerCounts& counts() const { return counts_; }
  KvPool& pool() { return pool_; }
  const StepRunner& runner() const { return runner_; }

 private:
  struct Entry {
    Sequence sequence;
    int64_t in_pool = -1;   // -1: it waits, or has ended
    int64_t in_flight = 0;  // tokens of launched steps that were not read yet
    int64_t prefill = 0;    // tokens that run in chunks, where the others run one by one after a preemption, too
    bool began = false;     // it was admitted before
    PrefixChain chain = {};
    int64_t kept_pages = 0;
    int64_t length() const { return static_cast<int64_t>(sequence.tokens.size()) + in_flight; }
    int64_t new_tokens() const { return sequence.new_tokens() + in_flight; }
  };
  using Errors = std::vector<std::string>;  // of a step's sequences, why there is no token; empty: none
  // A step whose new tokens were not read yet.
  struct Launched {
    bool ran = false;          // whether there was anything to run
    std::vector<int64_t> ids;  // sequences that get a token, rising
    Tensor tokens;          // [ids] int64, drawn on the device and on their way to the host; undefined: the host draws
    Tensor logits;          // [ids, vocab], not drawn from on the device; the runner's next step writes over them
    bool is_drawn = false;  // or left to the host
    Errors errors;
  };
  Entry& at(int64_t id);
  bool paged() const { return options_.page_size > 0; }
  void admit();
  bool can_begin(Entry& entry);
  bool awaits_page(Entry& entry);
  void begin(Entry& entry);
  void restart_long_ones();
  bool make_room(const Launched& before);
  void preempt(int64_t id);
  void keep(Entry& entry);
  void keep_prompts();
  int64_t restorable(const Entry& entry) const;
  Launched launch(const Launched& before);
  bool can_run_ahead(const Launched& launched) const;
  std::vector<NewToken> collect(const Launched& launched);
  StepRow next_row(int64_t id, const Launched& before);
  std::vector<std::pair<int64_t, StepRow>> next_rows(const Launched& before);
  static int64_t longest(const Sequence& sequence);  // tokens that the pool holds of it at most
  bool device_draws(const std::vector<int64_t>& ids) const;
  void draw(Launched& launched);
  Tensor allowed(const std::vector<int64_t>& ids, const std::vector<size_t>& rows, int64_t vocab, Errors& errors);
  Tensor drawn(const std::vector<int64_t>& ids, const Tensor& logits, Errors& errors);
  std::vector<SampledToken> sampled(const std::vector<int64_t>& ids, const Tensor& logits);
  void accept(const std::vector<int64_t>& ids, std::vector<SampledToken>& tokens);
  NewToken append(int64_t id, SampledToken token);
  void end(int64_t id, Finish why);

  CausalLM& model_;
  SchedulerOptions options_;
  KvPool pool_;
  StepRunner runner_;
  std::unique_ptr<PrefixCache> prefixes_;  // null: nothing is kept
  const bool replays_;                     // after a preemption tokens run in forwards as at first
  SchedulerCounts counts_;
  int64_t next_id_ = 0;
  std::map<int64_t, Entry> entries_;
  std::vector<int64_t> running_;  // ids, rising
  std::deque<int64_t> waiting_;
  std::optional<Launched> launched_;  // not read yet
  TokenReader reader_;                // of launched steps that the device draws for
  BatchSampler batch_sampler_;        // of sequences with settings of their own
};

}  // namespace hotswap
