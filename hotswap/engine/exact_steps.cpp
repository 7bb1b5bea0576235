#include "hotswap/engine/exact_steps.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <numeric>
#include <utility>
#include <vector>

#include "hotswap/models/config.h"

namespace hotswap {
namespace {

// [rows, vocab]: two tokens in each sequence, then a step of `shown` rows in forwards of `group` rows each. Of
// `adapters` rows the sequences have one after another; 0: none has one.
Tensor probe_step(CausalLM& model, int64_t sequences, const std::vector<int64_t>& shown, int64_t group,
                  int64_t adapters) {
  KvPool pool(model.device(), {.max_sequences = sequences});
  const int64_t vocab = model.config().vocab_size;
  std::vector<StepRow> first, second;
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t sequence = pool.acquire(), adapter = adapters == 0 ? -1 : i % adapters;
    first.push_back(
        {.sequence = sequence, .tokens = {(i * 37 + 11) % vocab, (i * 101 + 7) % vocab}, .adapter = adapter});
    second.push_back({.sequence = sequence, .tokens = {(i * 53 + 3) % vocab}, .adapter = adapter});
  }
  StepRunner(model, pool).run(std::move(first));
  std::vector<StepRow> rows;
  for (const int64_t i : shown) rows.push_back(second[i]);
  return StepRunner(model, pool, {.decode_rows = group}).run(std::move(rows));
}

// Whether a forward of `rows` rows gives some of them the bits that they have in a forward of their own.
bool is_exact(CausalLM& model, int64_t rows, int64_t adapters) {
  std::vector<int64_t> all(rows);
  std::iota(all.begin(), all.end(), 0);
  std::vector<int64_t> some = {0, rows - 1};
  if (rows > 2) some.insert(some.begin() + 1, rows / 2);
  const Tensor merged = probe_step(model, rows, all, rows, adapters),
               single = probe_step(model, rows, some, 1, adapters);
  return at::equal(merged.index_select(0, at::tensor(some, at::kLong).to(merged.device())), single);
}

}  // namespace

int64_t max_exact_decode_rows(CausalLM& model, int64_t max_rows) {
  const c10::InferenceMode inference;
  const auto adapters = static_cast<int64_t>(model.row_adapters().size());
  for (const int64_t count : {max_rows, int64_t{16}, int64_t{8}, int64_t{4}, int64_t{2}}) {
    if (count < 2 || count > max_rows) continue;
    int64_t rows = count;  // a step may have fewer rows than it may have at most
    while (rows >= 2 && is_exact(model, rows, 0) && (adapters == 0 || is_exact(model, rows, adapters))) --rows;
    if (rows < 2) return count;
  }
  return 1;
}

namespace {

constexpr int kSteps = 20;  // that are timed; the first ones are captured before

// Sequences of two tokens each in a pool of `room` rows, which take one more token at a time.
class Decoding {
 public:
  Decoding(CausalLM& model, int64_t room, int64_t sequences, bool whole, int64_t adapter = -1)
      : row_adapter_(adapter),
        vocab_(model.config().vocab_size),
        pool_(model.device(), {.max_sequences = room, .max_tokens = kSteps * 4}),
        runner_(model, pool_, {.single_prompts = true, .whole_steps = whole}) {
    rows_.resize(sequences);
    begin();
  }
  void restart() {
    for (const StepRow& row : rows_) pool_.release(row.sequence);
    begin();
  }
  bool recurs() const { return pool_.recurs(); }
  // [sequences, vocab]
  Tensor step() {
    for (size_t i = 0; i < rows_.size(); ++i) {
      rows_[i].tokens = {(static_cast<int64_t>(i) * 53 + 17 * count_ + 3) % vocab_};
    }
    ++count_;
    return runner_.run(rows_);
  }
  double step_ms() {
    for (int i = 0; i < 3; ++i) wait(step());
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) wait(step());
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / kSteps;
  }

 private:
  void begin() {
    count_ = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      rows_[i].sequence = pool_.acquire();
      rows_[i].adapter = row_adapter_;
      runner_.run({{.sequence = rows_[i].sequence,
                    .tokens = {(n * 37 + 11) % vocab_, (n * 101 + 7) % vocab_},
                    .adapter = row_adapter_}});
    }
  }
  static void wait(const Tensor& logits) { logits.select(0, 0).select(0, 0).item(); }
  int64_t row_adapter_, vocab_;
  KvPool pool_;
  StepRunner runner_;
  std::vector<StepRow> rows_;
  int64_t count_ = 0;
};

// Of rows with that adapter, as WholeSteps::why_not.
std::string why_not_whole(CausalLM& model, int64_t rows, int64_t adapter) {
  Decoding single(model, rows, 1, /*whole=*/true, adapter), all(model, rows, rows, /*whole=*/true, adapter);
  if (single.recurs()) return "a model with recurrent states, which move on in every row of such a step";
  // Of the first sequence by itself; then among others, and each again where the step has been captured already.
  std::vector<Tensor> expected;
  for (int i = 0; i < 4; ++i) expected.push_back(single.step().select(0, 0).clone());
  single.restart();
  for (Decoding* again : {&all, &single, &all}) {
    for (const Tensor& right : expected) {
      if (!at::equal(again->step().select(0, 0), right)) {
        return "a row of a step whose logits have other bits beside other rows";
      }
    }
    if (again == &all) all.restart();
  }
  return "";
}

}  // namespace

WholeSteps probe_whole_steps(CausalLM& model, int64_t rows) {
  const c10::InferenceMode inference;
  const c10::DeviceGuard current(model.device());
  WholeSteps found;
  try {
    const auto adapters = static_cast<int64_t>(model.row_adapters().size());
    for (int64_t adapter = -1; adapter < adapters && found.why_not.empty(); ++adapter) {
      found.why_not = why_not_whole(model, rows, adapter);
    }
    if (!found.why_not.empty()) return found;
    Decoding all(model, rows, rows, /*whole=*/true);
    found.ms = all.step_ms();
    found.single_ms = Decoding(model, rows, 1, /*whole=*/false).step_ms();
  } catch (const Error& error) {
    found.why_not = error.what();
  }
  return found;
}

}  // namespace hotswap
