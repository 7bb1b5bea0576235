// Rows whose bits do not depend on the rows beside them, however long their sequences are: exact_steps.h measures with
// short ones.
#include "hotswap/engine/exact_steps.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/test_families.h"
#include "hotswap/models/lora.h"

namespace hotswap {
namespace {

using test_support::Ids;

constexpr int64_t kRows = 4;

// Of torch's threads, while it lives.
class ScopedThreads {
 public:
  explicit ScopedThreads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~ScopedThreads() { at::set_num_threads(before_); }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  int before_;
};

// The logits of one more token of each of those sequences, whose prompts are of that length. Row `i` is sequence
// `which[i]`.
Tensor step_of(CausalLM& model, const Ids& which, int64_t length, ForwardGroups groups) {
  const auto adapters = static_cast<int64_t>(model.row_adapters().size());
  KvPool pool(at::kCPU, {.max_sequences = kRows});
  StepRunner runner(model, pool, groups);
  std::vector<StepRow> rows;
  for (const int64_t i : which) {
    Ids prompt;
    for (int64_t t = 0; t < length; ++t) prompt.push_back((i * 37 + t * 11 + 5) % test_support::kVocabulary);
    const StepRow row{.sequence = pool.acquire(), .tokens = prompt, .adapter = adapters == 0 ? -1 : i % adapters};
    runner.run({row});
    rows.push_back(row);
    rows.back().tokens = {(i * 53 + 3) % test_support::kVocabulary};
  }
  return runner.run(std::move(rows));
}

void expect_own_bits(CausalLM& model, const std::string& what) {
  const c10::InferenceMode inference;
  const ForwardGroups groups{.decode_rows = max_exact_decode_rows(model, kRows), .single_prompts = true};
  EXPECT_GT(groups.decode_rows, 1) << what << ": a forward of one row shows nothing";
  for (const int64_t length : {1, 8, 9, 15, 17, 24, 33}) {
    const Tensor all = step_of(model, {0, 1, 2, 3}, length, groups);
    for (int64_t i = 0; i < kRows; ++i) {
      EXPECT_TRUE(at::equal(all[i], step_of(model, {i}, length, groups)[0]))
          << what << ", row " << i << " after " << length << " tokens";
    }
  }
}

// Attention is torch's, whose threads share the rows of a call: a row by itself is not computed by the same ones.
TEST(ExactSteps, ARowHasItsBitsWhateverItsLength) {
  for (const char* family : {"llama", "gemma2"}) {
    for (const int threads : {1, 2, 3}) {
      const ScopedThreads of_torch(threads);
      for (const bool adapted : {false, true}) {
        const auto model = test_support::tiny(family, at::kCPU, at::kFloat, 16);
        for (const int64_t rank : {4, 3}) {
          const LoraConfig config{.r = rank, .target_modules = "all-linear", .init_lora_weights = "false"};
          if (adapted) model->add_row_adapter(LoraAdapter::fresh(*model, config, /*seed=*/rank), {});
        }
        // Rows with adapters run by a layer's parts; those without do where its kernel is off.
        KernelOptions options;
        if (model->config().model_type == "llama" && !adapted) options.config.kernel_mapping = {{"DecoderLayer", ""}};
        model->kernelize(Mode::INFERENCE, options);
        expect_own_bits(*model, cat(family, ", ", threads, " threads", adapted ? ", adapters" : ""));
      }
    }
  }
}

}  // namespace
}  // namespace hotswap
