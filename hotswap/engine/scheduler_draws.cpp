// How the tokens of a step are drawn: on the device, for all rows that can be, or on the host.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "hotswap/engine/device_copy.h"
#include "hotswap/engine/scheduler.h"
#include "hotswap/layers/parallel.h"

namespace hotswap {
namespace {

// Whether its row_sampler's token is drawn where the logits are.
bool batched(const Sequence& s) { return s.row_sampler && BatchSampler::draws_by(s.row_sampler->settings()); }

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
  return to_device(tokens, at::kLong, device).view({static_cast<int64_t>(draw.rows.size()), -1});
}

// work(i) of each i below count, several at once: a grammar takes tens of microseconds a row, and the device waits for
// all of them. What is wrong with one sequence ends no other: its error goes to error_of(i).
template <class Work, class ErrorOf>
void in_parallel(size_t count, const Work& work, const ErrorOf& error_of) {
  parallel_for(0, static_cast<int64_t>(count), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      try {
        work(i);
      } catch (const std::exception& error) {
        error_of(i) = error.what();
      }
    }
  });
}

}  // namespace

// Whether all that is drawn for them is a function of what the device knows. One random draw of several rows from one
// generator is not: a row that has ended unseen would take some of the others'.
bool Scheduler::device_draws(const std::vector<int64_t>& ids) const {
  return std::all_of(ids.begin(), ids.end(), [&](int64_t id) {
    const Sequence& s = entries_.at(id).sequence;
    return s.row_sampler ? batched(s) : !s.sampler->draws() && !s.sampler->needs_history();
  });
}

// What their constraints allow next, of those that have one and go on: `rows`, of ids. [rows, words] int32 on the host
Tensor Scheduler::allowed(const std::vector<int64_t>& ids, const std::vector<size_t>& rows, int64_t vocab,
                          Errors& errors) {
  const auto options = at::TensorOptions(at::kInt).pinned_memory(pool_.device().is_cuda());
  const int64_t words = constraint_words(vocab);
  const Tensor all = at::empty({static_cast<int64_t>(rows.size()), words}, options);
  int32_t* const begin = all.mutable_data_ptr<int32_t>();
  in_parallel(
      rows.size(),
      [&](size_t i) {
        const std::span own(begin + static_cast<int64_t>(i) * words, static_cast<size_t>(words));
        write_allowed(*at(ids[rows[i]]).sequence.constraint, vocab, own);
      },
      [&](size_t i) -> std::string& { return errors[rows[i]]; });
  return all;
}

// The tokens of those that are drawn on the device; of the others anything. [ids] int64
Tensor Scheduler::drawn(const std::vector<int64_t>& ids, const Tensor& logits, Errors& errors) {
  const at::Device device = logits.device();
  std::vector<const Sequence*> sequences;
  std::vector<DrawRow> own;
  std::vector<int64_t> own_rows;
  std::vector<size_t> constrained;
  for (size_t row = 0; row < ids.size(); ++row) {
    const Entry& entry = at(ids[row]);
    const Sequence& s = entry.sequence;
    sequences.push_back(&s);
    if (!batched(s) || s.finish != Finish::kNot) continue;
    own_rows.push_back(static_cast<int64_t>(row));
    const bool has_words = s.constraint != nullptr;
    if (has_words) constrained.push_back(row);
    own.push_back({ids[row], &s.row_sampler->settings(), s.tokens, s.prompt_length, entry.length(), has_words});
  }
  Tensor all;
  // Of these rows, from their logits.
  const auto draw = [&](const std::vector<int64_t>& rows, const auto& next) {
    if (rows.size() == ids.size()) {
      all = next(logits);
      return;
    }
    const Tensor index = to_device(rows, at::kLong, device);
    if (!all.defined()) all = at::zeros({logits.size(0)}, logits.options().dtype(at::kLong));
    all.index_copy_(0, index, next(logits.index_select(0, index)));
  };
  for (const Draw& shared : draws_of(sequences)) {
    Tensor made;  // new tokens of each row so far
    if (shared.sampler->needs_made()) {
      std::vector<int64_t> counts;
      for (const int64_t row : shared.rows) counts.push_back(at(ids[row]).new_tokens());
      made = to_device(counts, at::kLong, device);
    }
    draw(shared.rows, [&](const Tensor& scores) {
      return shared.sampler->next(scores, history_of(shared, sequences, device), /*length=*/{}, made);
    });
  }
  if (!own.empty()) {
    const Tensor words = constrained.empty() ? Tensor() : allowed(ids, constrained, logits.size(1), errors);
    draw(own_rows, [&](const Tensor& scores) { return batch_sampler_.next(own, scores, words); });
  }
  return all.defined() ? all : at::zeros({logits.size(0)}, logits.options().dtype(at::kLong));
}

// logits: a row for each of the sequences
std::vector<SampledToken> Scheduler::sampled(const std::vector<int64_t>& ids, const Tensor& logits) {
  Errors errors(ids.size());
  const Tensor here = drawn(ids, logits, errors).to(at::kCPU).contiguous();
  std::vector<SampledToken> tokens(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const Sequence& s = at(ids[i]).sequence;
    if (!s.row_sampler || batched(s)) {
      tokens[i].id = here.const_data_ptr<int64_t>()[i];
      tokens[i].error = std::move(errors[i]);
      continue;
    }
    const Tensor row = logits.select(0, static_cast<int64_t>(i)).to(at::kCPU, at::kFloat).contiguous();
    const std::span scores(row.const_data_ptr<float>(), static_cast<size_t>(row.numel()));
    try {  // what is wrong with one sequence ends no other
      tokens[i] = s.row_sampler->next(scores, s.tokens, s.prompt_length, s.constraint.get());
    } catch (const std::exception& error) {
      tokens[i].error = error.what();
    }
  }
  return tokens;
}

// Tells the sequences' constraints their tokens.
void Scheduler::accept(const std::vector<int64_t>& ids, std::vector<SampledToken>& tokens) {
  std::vector<size_t> rows;
  for (size_t row = 0; row < ids.size(); ++row) {
    if (at(ids[row]).sequence.constraint && tokens[row].error.empty()) rows.push_back(row);
  }
  in_parallel(
      rows.size(), [&](size_t i) { at(ids[rows[i]]).sequence.constraint->accept(tokens[rows[i]].id); },
      [&](size_t i) -> std::string& { return tokens[rows[i]].error; });
}

// Launches the draw of the step's tokens, unless the host draws or it was launched before. Tokens before it were read
// where a sequence has a constraint.
void Scheduler::draw(Launched& launched) {
  if (std::exchange(launched.is_drawn, true) || launched.ids.empty()) return;
  launched.errors.resize(launched.ids.size());
  if (device_draws(launched.ids)) {
    launched.tokens = drawn(launched.ids, launched.logits, launched.errors);
    launched.logits = Tensor();
    reader_.push(launched.tokens);
  }
  for (const int64_t id : launched.ids) ++at(id).in_flight;
}

}  // namespace hotswap
