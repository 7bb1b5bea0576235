#include "hotswap/engine/verified_steps.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <array>

#include "hotswap/base/error.h"
#include "hotswap/engine/device_copy.h"
#include "hotswap/engine/guess_step.h"
#include "hotswap/engine/uniform_step.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

// Few, because each is compared with single steps once.
constexpr std::array<int64_t, 5> kRowCounts = {16, 8, 4, 3, 2};

Tensor logits_of_rows(CausalLM& model, const StepBatch& batch, StepMemory& memory) {
  return model({.step = &batch, .memory = &memory, .logits_to_keep = 1}).logits.select(1, 0);
}

}  // namespace

VerifiedSteps::VerifiedSteps(CausalLM& model, KvPool& pool, int64_t capacity)
    : model_(model), pool_(pool), capacity_(capacity), sequence_(pool.acquire()) {}

VerifiedSteps::Logits VerifiedSteps::begin(const std::vector<int64_t>& text) {
  pool_.rollback(sequence_, 0);
  KvStep step(pool_, {{.sequence = sequence_, .tokens = text}});
  Tensor logits = logits_of_rows(model_, step.batch(), step);
  step.commit();
  ++forwards_;
  exact_ = pool_.length(sequence_);
  if (pool_.recurs()) {
    throw Error(
        {.kind = ErrorKind::kUnsupported,
         .wanted = "a model whose layers keep keys and values only, where tokens are guessed",
         .got = cat(model_.config().model_type, ", whose recurrent states cannot go back"),
         .next = "leave out prompt_lookup_num_tokens and the assistant, or take an assistant of another family"});
  }
  return {std::move(logits), true};
}

Tensor VerifiedSteps::in_one_forward(const std::vector<int64_t>& tokens) {
  GuessStep step(pool_, sequence_, tokens);
  Tensor logits = logits_of_rows(model_, step.batch(), step);
  step.commit();
  ++forwards_;
  return logits;
}

Tensor VerifiedSteps::single(int64_t token) {
  if (capacity_ == 0) return in_one_forward({token});
  UniformStep step(pool_, capacity_);
  Tensor logits = step.forward(model_, to_device({token}, at::kLong, pool_.device()));
  step.commit();
  ++forwards_;
  return logits;
}

VerifiedSteps::Rows VerifiedSteps::known(int64_t rows) const {
  const auto found = known_.find(rows);
  return found == known_.end() ? Rows::kUnknown : found->second;
}

int64_t VerifiedSteps::max_rows(int64_t tokens) const {
  for (const int64_t rows : kRowCounts) {
    if (rows <= tokens && known(rows) != Rows::kNear) return rows;
  }
  if (known(kRowCounts.back()) != Rows::kNear) return 1;
  for (const int64_t rows : kRowCounts) {
    if (rows <= tokens) return rows;
  }
  return 1;
}

VerifiedSteps::Logits VerifiedSteps::run(const std::vector<int64_t>& tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const bool from_exact = exact_ == pool_.length(sequence_);
  if (rows > 1 && known(rows) == Rows::kUnknown && from_exact) return compared(tokens);
  Tensor logits = rows == 1 ? single(tokens.front()) : in_one_forward(tokens);
  const bool exact = from_exact && (rows == 1 || known(rows) == Rows::kExact);
  if (exact) exact_ = pool_.length(sequence_);
  return {std::move(logits), exact};
}

VerifiedSteps::Logits VerifiedSteps::compared(const std::vector<int64_t>& tokens) {
  const int64_t before = pool_.length(sequence_);
  const Tensor all = in_one_forward(tokens).clone();
  pool_.rollback(sequence_, before);
  std::vector<Tensor> singles;
  Rows found = Rows::kExact;
  for (size_t row = 0; row < tokens.size() && found == Rows::kExact; ++row) {
    singles.push_back(single(tokens[row]).clone());
    if (!at::equal(singles.back(), all.narrow(0, static_cast<int64_t>(row), 1))) found = Rows::kNear;
  }
  known_[static_cast<int64_t>(tokens.size())] = found;
  exact_ = pool_.length(sequence_);
  return {at::cat(singles, 0), true};
}

void VerifiedSteps::keep(int64_t length) {
  if (pool_.length(sequence_) <= length) return;
  pool_.rollback(sequence_, length);
  exact_ = std::min(exact_, length);
}

Tensor VerifiedSteps::repeat(const std::vector<int64_t>& text) {
  pool_.rollback(sequence_, exact_);
  Tensor logits;
  for (auto next = text.begin() + exact_; next != text.end(); ++next, ++repeated_) logits = single(*next);
  exact_ = pool_.length(sequence_);
  return logits;
}

double VerifiedSteps::rounding(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-4 : dtype == at::kHalf ? 4e-3 : 3e-2;
}

}  // namespace hotswap
