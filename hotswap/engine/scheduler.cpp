#include "hotswap/engine/scheduler.h"

#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// Rows of a batch that one call samples: those of one sampler, and of one length where it reads the tokens so far.
struct Draw {
  Sampler* sampler;
  size_t length;              // tokens so far; 0: the sampler does not read them
  std::vector<int64_t> rows;  // of the logits
};

std::vector<Draw> draws_of(const std::vector<const Sequence*>& sequences) {
  std::vector<Draw> draws;
  for (size_t row = 0; row < sequences.size(); ++row) {
    if (sequences[row]->row_sampler) continue;
    Sampler* sampler = sequences[row]->sampler.get();
    const size_t length = sampler->needs_history() ? sequences[row]->tokens.size() : 0;
    auto found = std::find_if(draws.begin(), draws.end(),
                              [&](const Draw& d) { return d.sampler == sampler && d.length == length; });
    if (found == draws.end()) found = draws.insert(draws.end(), {sampler, length, {}});
    found->rows.push_back(static_cast<int64_t>(row));
  }
  return draws;
}

// Of the draw's rows, which are of one length: [rows, length]; undefined where the sampler does not read it.
Tensor history_of(const Draw& draw, const std::vector<const Sequence*>& sequences, at::Device device) {
  if (draw.length == 0) return {};
  std::vector<int64_t> tokens;
  for (const int64_t row : draw.rows) {
    tokens.insert(tokens.end(), sequences[row]->tokens.begin(), sequences[row]->tokens.end());
  }
  return at::tensor(tokens, at::kLong).view({static_cast<int64_t>(draw.rows.size()), -1}).to(device);
}

// How many new tokens each of the rows has: [rows]; undefined where the sampler does not read it.
Tensor made_of(const Draw& draw, const std::vector<const Sequence*>& sequences, at::Device device) {
  if (!draw.sampler->needs_made()) return {};
  std::vector<int64_t> made;
  for (const int64_t row : draw.rows) made.push_back(sequences[row]->new_tokens());
  return at::tensor(made, at::kLong).to(device);
}

}  // namespace

Scheduler::Scheduler(CausalLM& model, const SchedulerOptions& options)
    : model_(model),
      options_(options),
      pool_(model.device(),
            {.max_sequences = options.max_sequences, .max_tokens = options.max_tokens, .page_size = options.page_size}),
      runner_(model, pool_, options.groups) {}

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
  entries_.emplace(next_id_, Entry{std::move(sequence)});
  waiting_.push_back(next_id_);
  return next_id_++;
}

Scheduler::Entry& Scheduler::at(int64_t id) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) return found->second;
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = "the id of a sequence of this scheduler",
               .got = cat(id),
               .next = "use an id that join() gave and take() has not taken"});
}

const Sequence& Scheduler::sequence(int64_t id) const { return const_cast<Scheduler*>(this)->at(id).sequence; }

bool Scheduler::admitted(int64_t id) const {
  const Entry& entry = const_cast<Scheduler*>(this)->at(id);
  return entry.in_pool >= 0 || entry.sequence.finish != Finish::kNot;
}

void Scheduler::end(int64_t id, Finish why) {
  Entry& entry = at(id);
  entry.sequence.finish = why;
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

// With pages a sequence is admitted once those for its whole length are free: none is ever put out again.
void Scheduler::admit() {
  while (!waiting_.empty() && pool_.free_sequences() > 0) {
    Entry& entry = at(waiting_.front());
    if (!pool_.fits(longest(entry.sequence))) break;
    entry.in_pool = pool_.acquire();
    if (options_.page_size > 0) pool_.reserve(entry.in_pool, longest(entry.sequence));
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
  std::sort(running_.begin(), running_.end());
}

// The last token is never attended to.
int64_t Scheduler::longest(const Sequence& s) {
  return static_cast<int64_t>(s.tokens.size()) - s.new_tokens() + s.stop.max_new_tokens - 1;
}

StepRow Scheduler::next_row(const Entry& entry) const {
  const Sequence& s = entry.sequence;
  const int64_t done = pool_.length(entry.in_pool), all = static_cast<int64_t>(s.tokens.size());
  int64_t count = all - done;
  if (options_.chunk > 0) count = std::min(count, options_.chunk);
  return {
      .sequence = entry.in_pool, .tokens = {s.tokens.begin() + done, s.tokens.begin() + done + count}, .whole = all};
}

void Scheduler::sample_shared(const std::vector<const Sequence*>& sequences, const Tensor& logits,
                              std::vector<SampledToken>& tokens) {
  for (const Draw& draw : draws_of(sequences)) {
    const bool all = draw.rows.size() == sequences.size();
    const Tensor scores = all ? logits : logits.index_select(0, at::tensor(draw.rows, at::kLong).to(logits.device()));
    const Tensor next = draw.sampler
                            ->next(scores, history_of(draw, sequences, scores.device()), /*length=*/{}, /*to=*/{},
                                   made_of(draw, sequences, scores.device()))
                            .to(at::kCPU)
                            .contiguous();
    for (size_t i = 0; i < draw.rows.size(); ++i) tokens[draw.rows[i]].id = next.const_data_ptr<int64_t>()[i];
  }
}

// logits: a row for each of the sequences
std::vector<SampledToken> Scheduler::sampled(const std::vector<int64_t>& ids, const Tensor& logits) {
  std::vector<const Sequence*> sequences;
  for (const int64_t id : ids) sequences.push_back(&at(id).sequence);
  std::vector<SampledToken> tokens(ids.size());
  sample_shared(sequences, logits, tokens);
  for (size_t i = 0; i < ids.size(); ++i) {
    const Sequence& s = *sequences[i];
    if (!s.row_sampler) continue;
    const Tensor row = logits.select(0, static_cast<int64_t>(i)).to(at::kCPU, at::kFloat).contiguous();
    const std::span scores(row.const_data_ptr<float>(), static_cast<size_t>(row.numel()));
    try {  // what is wrong with one sequence ends no other
      tokens[i] = s.row_sampler->next(scores, s.tokens, s.prompt_length, s.constraint.get());
      if (s.constraint) s.constraint->accept(tokens[i].id);
    } catch (const std::exception& error) {
      tokens[i].error = error.what();
    }
  }
  return tokens;
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
  if (finish != Finish::kNot) end(id, finish);
  return {id, token.id, finish, std::move(token.logprobs)};
}

std::vector<NewToken> Scheduler::step() {
  const c10::InferenceMode inference;
  admit();
  std::vector<StepRow> rows;
  std::vector<int64_t> done, drawn;  // sequences whose prompt this step completes, and their rows
  for (const int64_t id : running_) {
    Entry& entry = at(id);
    const auto all = static_cast<int64_t>(entry.sequence.tokens.size());
    if (entry.sequence.restart_length > 0 && all >= entry.sequence.restart_length) {
      pool_.rollback(entry.in_pool, 0);
      if (options_.page_size > 0) pool_.reserve(entry.in_pool, longest(entry.sequence));
      entry.sequence.restart_length = 0;
    }
    rows.push_back(next_row(entry));
    if (pool_.length(entry.in_pool) + static_cast<int64_t>(rows.back().tokens.size()) < all) continue;
    done.push_back(id);
    drawn.push_back(static_cast<int64_t>(rows.size()) - 1);
  }
  if (rows.empty()) return {};
  const bool all_draw = drawn.size() == rows.size();
  Tensor logits = runner_.run(std::move(rows));
  if (done.empty()) return {};
  if (!all_draw) logits = logits.index_select(0, at::tensor(drawn, at::kLong).to(logits.device()));
  std::vector<SampledToken> tokens = sampled(done, logits);
  std::vector<NewToken> out;
  for (size_t i = 0; i < done.size(); ++i) out.push_back(append(done[i], std::move(tokens[i])));
  return out;
}

}  // namespace hotswap
