#include "hotswap/engine/scheduler.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "hotswap/base/error.h"
#include "hotswap/engine/device_copy.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

constexpr int64_t kPrefixPage = 64;
// Of prompts in one step. A second one costs less than half of the first (docs/serving.md), and streams wait for it.
constexpr int64_t kChunks = 2;

bool keys_depend_on_length(const CausalLM& model) {
  const auto& config = model.config();
  const auto depends = [](const RopeParameters& rope) { return rope.type == "dynamic" || rope.type == "longrope"; };
  return depends(config.rope_parameters) ||
         (config.sliding_rope_parameters && depends(*config.sliding_rope_parameters));
}

}  // namespace

Scheduler::Scheduler(CausalLM& model, const SchedulerOptions& options)
    : model_(model),
      options_(options),
      pool_(model.device(), {.max_sequences = options.max_sequences,
                             .max_tokens = options.max_tokens,
                             .page_size = options.page_size,
                             .pages = options.pages}),
      runner_(model, pool_, options.groups, options.capture),
      replays_(options.exact || keys_depend_on_length(model)),
      reader_(model.device(), options.max_sequences),
      batch_sampler_(&model.lm_head()) {
  const int64_t page = options.exact ? options.chunk : kPrefixPage;
  if (page == 0 || options.prefix_tokens < page || keys_depend_on_length(model)) return;
  prefixes_ = std::make_unique<PrefixCache>(
      pool_, PrefixCacheOptions{.pages = options.prefix_tokens / page, .page_tokens = page});
}

int64_t restart_length(const CausalLM& model, int64_t prompt) {
  const RopeParameters& rope = model.config().rope_parameters;
  const bool restarts = model.config().model_type == "phi3" && rope.type == "longrope";  // as transformers
  return restarts && prompt <= rope.original_max_position_embeddings ? rope.original_max_position_embeddings + 1 : 0;
}

int64_t Scheduler::join(Sequence sequence) {
  const bool samples = sequence.sampler || sequence.row_sampler;
  const bool can_run = !sequence.tokens.empty() && samples && sequence.stop.max_new_tokens >= 1;
  if (!can_run) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a sequence with a prompt, a sampler and at least one new token",
                 .got = cat(sequence.tokens.size(), " tokens, ", samples ? "a" : "no", " sampler, ",
                            sequence.stop.max_new_tokens, " new tokens"),
                 .next = "set Sequence::tokens, sampler and stop.max_new_tokens"});
  }
  sequence.prompt_length = static_cast<int64_t>(sequence.tokens.size());
  if (options_.page_size > 0 && longest(sequence) > options_.max_tokens) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("at most ", options_.max_tokens, " tokens of a sequence, its prompt included"),
                 .got = cat(sequence.tokens.size(), " and ", sequence.stop.max_new_tokens, " new ones"),
                 .next = "set a smaller max_new_tokens, or a larger SchedulerOptions::max_tokens"});
  }
  if (sequence.adapter >= static_cast<int64_t>(model_.row_adapters().size())) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("one of the model's ", model_.row_adapters().size(), " adapters of rows, from 0, or -1"),
                 .got = cat(sequence.adapter),
                 .next = "give what add_row_adapter() returned"});
  }
  Entry entry{.prefill = sequence.prompt_length, .chain = {.salt = cat(sequence.adapter, "\n", sequence.cache_salt)}};
  entry.sequence = std::move(sequence);
  entries_.emplace(next_id_, std::move(entry));
  waiting_.push_back(next_id_);
  return next_id_++;
}

Scheduler::Entry& Scheduler::at(int64_t id) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) return found->second;
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = "the id of a sequence of this scheduler",
               .got = cat(id),
               .next = "use an id that join() returned and take() has not yet removed"});
}

const Sequence& Scheduler::sequence(int64_t id) const { return const_cast<Scheduler*>(this)->at(id).sequence; }

bool Scheduler::admitted(int64_t id) const {
  const Entry& entry = const_cast<Scheduler*>(this)->at(id);
  return entry.in_pool >= 0 || entry.sequence.finish != Finish::kNot;
}

void Scheduler::end(int64_t id, Finish why) {
  Entry& entry = at(id);
  entry.sequence.finish = why;
  batch_sampler_.forget(id);
  if (entry.in_pool >= 0) pool_.release(entry.in_pool);
  entry.in_pool = -1;
  std::erase(running_, id);
  std::erase(waiting_, id);
}

void Scheduler::leave(int64_t id) {
  if (at(id).sequence.finish == Finish::kNot) end(id, Finish::kLeft);
}

Sequence Scheduler::take(int64_t id) {
  if (at(id).sequence.finish == Finish::kNot) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a sequence that has ended",
                 .got = cat(id, ", which has not"),
                 .next = "leave() it first"});
  }
  Sequence sequence = std::move(at(id).sequence);
  entries_.erase(id);
  return sequence;
}

void Scheduler::admit() {
  while (!waiting_.empty() && pool_.free_sequences() > 0) {
    Entry& entry = at(waiting_.front());
    if (!can_begin(entry)) break;
    begin(entry);
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
  std::sort(running_.begin(), running_.end());
}

// Whether pages for its tokens are free, and one for each sequence that runs. One by itself always has them.
bool Scheduler::can_begin(Entry& entry) {
  if (awaits_page(entry)) return false;
  if (!paged()) return true;
  const auto tokens = static_cast<int64_t>(entry.sequence.tokens.size());
  return pool_.pages_for(tokens) + running() <= pool_.free_pages();
}

// Whether a sequence that runs is about to compute the page that this one needs next. It will be kept: of sequences
// that begin alike and come at the same time only one computes their beginning.
bool Scheduler::awaits_page(Entry& entry) {
  if (!prefixes_) return false;
  const int64_t known = prefixes_->known(entry.sequence.tokens, entry.chain, restorable(entry));
  const auto page = static_cast<size_t>(known / prefixes_->page_tokens());
  if (page >= entry.chain.keys.size() || pool_.recurs()) return false;
  return std::any_of(running_.begin(), running_.end(), [&](int64_t id) {
    Entry& other = at(id);
    const int64_t end = known + prefixes_->page_tokens();
    if (pool_.length(other.in_pool) >= end || other.prefill < end) return false;
    prefixes_->extend(other.chain, other.sequence.tokens, end / prefixes_->page_tokens());
    return other.chain.keys[page] == entry.chain.keys[page];
  });
}

// The last token must run, because its logits are needed; where forwards are as at first, all new ones.
int64_t Scheduler::restorable(const Entry& entry) const {
  const auto but_one = static_cast<int64_t>(entry.sequence.tokens.size()) - 1;
  return replays_ ? std::min(entry.prefill, but_one) : but_one;
}

void Scheduler::begin(Entry& entry) {
  Sequence& s = entry.sequence;
  entry.in_pool = pool_.acquire(runner_.company_of(s.adapter));
  if (paged()) pool_.reserve(entry.in_pool, static_cast<int64_t>(s.tokens.size()));
  const bool first = !std::exchange(entry.began, true);
  if (!prefixes_) return;
  const int64_t restored = prefixes_->restore(entry.in_pool, s.tokens, entry.chain, restorable(entry));
  entry.kept_pages = restored / prefixes_->page_tokens();
  if (!first) return;
  s.cached_tokens = restored;
  counts_.prefix_queries += s.prompt_length;
  counts_.prefix_hits += restored;
}

// Keeps what has run of the sequence, and was not kept before.
void Scheduler::keep(Entry& entry) {
  if (!prefixes_) return;
  // Tokens in flight are not known yet.
  const auto known = static_cast<int64_t>(entry.sequence.tokens.size());
  const int64_t run = std::min(pool_.length(entry.in_pool), known),
                count = replays_ ? std::min(run, entry.prefill) : run;
  const int64_t pages = count / prefixes_->page_tokens();
  if (pages > entry.kept_pages) prefixes_->keep(entry.in_pool, entry.sequence.tokens, entry.chain, count);
  entry.kept_pages = pages;
}

// New tokens are kept when their sequence ends: many pages cost little more than one.
void Scheduler::keep_prompts() {
  if (!prefixes_) return;
  for (const int64_t id : running_) {
    Entry& entry = at(id);
    if (pool_.length(entry.in_pool) <= entry.prefill) keep(entry);
  }
}

void Scheduler::preempt(int64_t id) {
  Entry& entry = at(id);
  keep(entry);
  pool_.release(entry.in_pool);
  entry.in_pool = -1;
  std::erase(running_, id);
  waiting_.push_front(id);  // all that wait have come later
  ++counts_.preemptions;
}

// Takes pages for the next tokens of all that run. -> whether some had to be preempted for that
bool Scheduler::make_room(const Launched& before) {
  if (!paged()) return false;
  const int64_t preemptions = counts_.preemptions;
  for (size_t i = 0; i < running_.size(); ++i) {
    const int64_t sequence = at(running_[i]).in_pool;
    const int64_t tokens = pool_.length(sequence) + static_cast<int64_t>(next_row(running_[i], before).tokens.size());
    while (i < running_.size() && !pool_.can_reserve(sequence, tokens)) preempt(running_.back());
    if (i < running_.size()) pool_.reserve(sequence, tokens);
  }
  return counts_.preemptions > preemptions;
}

void Scheduler::restart_long_ones() {
  for (const int64_t id : running_) {
    Entry& entry = at(id);
    if (entry.sequence.restart_length == 0 || entry.length() < entry.sequence.restart_length) continue;
    pool_.rollback(entry.in_pool, 0);
    entry.sequence.restart_length = 0;
    entry.prefill = entry.length();
  }
}

// The last token is never attended to.
int64_t Scheduler::longest(const Sequence& s) {
  return static_cast<int64_t>(s.tokens.size()) - s.new_tokens() + s.stop.max_new_tokens - 1;
}

// before: the step that has the sequence's newest token, where it was not read yet.
StepRow Scheduler::next_row(int64_t id, const Launched& before) {
  const Entry& entry = at(id);
  const std::vector<int64_t>& tokens = entry.sequence.tokens;
  const int64_t done = pool_.length(entry.in_pool), all = entry.length();
  if (entry.in_flight > 0) {
    const auto found = std::lower_bound(before.ids.begin(), before.ids.end(), id);
    return {.sequence = entry.in_pool,
            .tokens = {0},
            .whole = all,
            .drawn = found - before.ids.begin(),
            .adapter = entry.sequence.adapter};
  }
  const int64_t end = !replays_ ? all : done < entry.prefill ? entry.prefill : done + 1;
  int64_t count = end - done;
  if (options_.chunk > 0) count = std::min(count, options_.chunk);
  return {.sequence = entry.in_pool,
          .tokens = {tokens.begin() + done, tokens.begin() + done + count},
          .whole = end,
          .adapter = entry.sequence.adapter};
}

NewToken Scheduler::append(int64_t id, SampledToken token) {
  Sequence& s = at(id).sequence;
  if (!token.error.empty()) {
    end(id, Finish::kFailed);
    return {.sequence = id, .id = -1, .finish = Finish::kFailed, .error = std::move(token.error)};
  }
  s.tokens.push_back(token.id);
  const bool is_eos = std::find(s.stop.eos.begin(), s.stop.eos.end(), token.id) != s.stop.eos.end() ||
                      (s.constraint && s.constraint->ended());
  const bool is_text = s.stop.ends_with && s.stop.ends_with(token.id);
  const Finish finish = is_eos                                    ? Finish::kEos
                        : is_text                                 ? Finish::kStopString
                        : s.new_tokens() >= s.stop.max_new_tokens ? Finish::kLength
                                                                  : Finish::kNot;
  if (finish != Finish::kNot) {
    keep(at(id));
    end(id, finish);
  }
  return {id, token.id, finish, std::move(token.logprobs)};
}

// Of all sequences, but of those that end with a token that was not read yet, and of prompts that wait because those
// before them fill the step. The oldest never waits.
std::vector<std::pair<int64_t, StepRow>> Scheduler::next_rows(const Launched& before) {
  std::vector<std::pair<int64_t, StepRow>> rows;
  int64_t of_prompts = 0;
  for (const int64_t id : running_) {
    Entry& entry = at(id);
    if (entry.new_tokens() >= entry.sequence.stop.max_new_tokens) continue;
    StepRow row = next_row(id, before);
    if (pool_.is_of_prompt(row)) {
      const auto tokens = static_cast<int64_t>(row.tokens.size());
      if (options_.chunk > 0 && of_prompts > 0 && of_prompts + tokens > kChunks * options_.chunk) continue;
      of_prompts += tokens;
    }
    rows.emplace_back(id, std::move(row));
  }
  return rows;
}

Scheduler::Launched Scheduler::launch(const Launched& before) {
  restart_long_ones();
  if (!make_room(before)) admit();
  Launched out;
  std::vector<StepRow> rows;
  std::vector<int64_t> last;  // rows with the last token so far of a sequence in `out`
  for (auto& [id, row] : next_rows(before)) {
    const Entry& entry = at(id);
    rows.push_back(std::move(row));
    if (pool_.length(entry.in_pool) + static_cast<int64_t>(rows.back().tokens.size()) < entry.length()) continue;
    out.ids.push_back(id);
    last.push_back(static_cast<int64_t>(rows.size()) - 1);
  }
  out.ran = !rows.empty();
  if (!out.ran) return out;
  const bool all_draw = last.size() == rows.size();
  const Tensor logits = runner_.run(std::move(rows), before.tokens);
  if (!out.ids.empty()) {
    out.logits = all_draw ? logits : logits.index_select(0, to_device(last, at::kLong, logits.device()));
    const bool needs_tokens =  // those before, by which a constraint decides
        std::any_of(out.ids.begin(), out.ids.end(), [&](int64_t id) { return at(id).sequence.constraint != nullptr; });
    if (!needs_tokens) draw(out);
  }
  keep_prompts();  // after the draw, for whose tokens clients wait
  return out;
}

// Not where the host has to draw first, where a sequence may have to give its pages back, or where all tokens of a
// sequence are run again, the newest one with them.
bool Scheduler::can_run_ahead(const Launched& launched) const {
  if (!options_.run_ahead.value_or(pool_.device().is_cuda()) || launched.logits.defined()) return false;
  if (paged()) return false;
  return std::none_of(running_.begin(), running_.end(), [&](int64_t id) {
    const Entry& entry = entries_.at(id);
    const int64_t restart = entry.sequence.restart_length;
    return entry.in_flight > 0 && restart > 0 && entry.length() >= restart;
  });
}

// Tokens of sequences that have ended meanwhile are dropped.
std::vector<NewToken> Scheduler::collect(const Launched& launched) {
  std::vector<int64_t> ids, rows;  // of those that go on
  for (size_t row = 0; row < launched.ids.size(); ++row) {
    const auto found = entries_.find(launched.ids[row]);
    if (found == entries_.end()) continue;
    --found->second.in_flight;
    if (found->second.sequence.finish != Finish::kNot) continue;
    ids.push_back(launched.ids[row]);
    rows.push_back(static_cast<int64_t>(row));
  }
  std::vector<SampledToken> tokens(ids.size());
  if (launched.tokens.defined()) {
    const std::vector<int64_t> all = reader_.pop();
    for (size_t i = 0; i < ids.size(); ++i) {
      tokens[i].id = all[rows[i]];
      tokens[i].error = launched.errors[rows[i]];
    }
  } else if (!ids.empty()) {
    const bool whole = ids.size() == launched.ids.size();
    const Tensor& logits = launched.logits;
    tokens = sampled(ids, whole ? logits : logits.index_select(0, to_device(rows, at::kLong, logits.device())));
  }
  accept(ids, tokens);
  std::vector<NewToken> out;
  for (size_t i = 0; i < ids.size(); ++i) out.push_back(append(ids[i], std::move(tokens[i])));
  return out;
}

std::vector<NewToken> Scheduler::step() {
  const c10::InferenceMode inference;
  if (!launched_) launched_ = launch({});
  draw(*launched_);
  std::optional<Launched> next;
  if (can_run_ahead(*launched_)) next = launch(*launched_);
  if (next && !next->ran) next.reset();
  const Launched now = std::exchange(launched_, std::move(next)).value();
  std::vector<NewToken> tokens = collect(now);
  if (launched_) draw(*launched_);
  return tokens;
}

}  // namespace hotswap
