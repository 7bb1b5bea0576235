#include "hotswap/models/encoder_models/packed_run.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "hotswap/base/error.h"
#include "hotswap/layers/parallel.h"
#include "hotswap/models/encoder_models/text_family.h"

namespace hotswap {
namespace {

// Tokens of a batch: of one that a thread runs by itself as many as stay in its caches, of one for all threads more.
constexpr int64_t kTokensOfOneThread = 1024, kTokensOfAll = 8192;

using TextRows = std::vector<size_t>;  // which texts

int64_t length_of(const TextIds& text) { return static_cast<int64_t>(text.ids.size()); }

// Longest first, cut into batches of that many tokens. What does not pack has texts of one length in a batch.
std::vector<TextRows> batches_of(const std::vector<TextIds>& texts, int64_t tokens, bool packs) {
  TextRows order(texts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return texts[a].ids.size() > texts[b].ids.size(); });
  std::vector<TextRows> batches;
  int64_t count = 0;
  for (const size_t i : order) {
    const int64_t length = length_of(texts[i]);
    const bool other = !batches.empty() && !packs && length_of(texts[batches.back().front()]) != length;
    if (batches.empty() || other || count + length > tokens) {
      batches.emplace_back();
      count = 0;
    }
    batches.back().push_back(i);
    count += length;
  }
  return batches;
}

TextOutput run_batch(TextModel& model, const std::vector<TextIds>& texts, const TextRows& rows, bool packs) {
  std::vector<int64_t> ids, types, lengths;
  for (const size_t i : rows) {
    ids.insert(ids.end(), texts[i].ids.begin(), texts[i].ids.end());
    types.insert(types.end(), texts[i].type_ids.begin(), texts[i].type_ids.end());
    lengths.push_back(length_of(texts[i]));
  }
  const int64_t count = packs ? 1 : static_cast<int64_t>(rows.size());
  const auto tensor = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).to(model.device()).view({count, -1});
  };
  TextArguments arguments{.input_ids = tensor(ids)};
  if (model.has_token_types() && types.size() == ids.size()) arguments.token_type_ids = tensor(types);
  if (packs) arguments.lengths = lengths;
  return model(arguments);
}

int64_t count_tokens(const std::vector<TextIds>& texts) {
  int64_t tokens = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    tokens += length_of(texts[i]);
    if (!texts[i].ids.empty()) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "at least one token in each text",
                 .got = cat("none in text ", i),
                 .next = "leave empty texts out: this tokenizer adds no special tokens"});
  }
  return tokens;
}

// Each batch once, on as many threads; the first error of one ends the call after all have run.
void run_all(int64_t threads, size_t count, const std::function<void(size_t)>& run) {
  std::exception_ptr failed;
  std::mutex mutex;
  std::atomic<size_t> next = 0;  // batches are of unequal cost: each thread takes the next one
  const auto work = [&](int64_t, int64_t) {
    const at::NoGradGuard no_grad;
    for (size_t i = next++; i < count; i = next++) {
      try {
        run(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed) failed = std::current_exception();
      }
    }
  };
  if (threads > 1) {
    parallel_for(0, threads, 1, work);
  } else {
    work(0, 1);
  }
  if (failed) std::rethrow_exception(failed);
}

}  // namespace

Tensor run_packed(TextModel& model, const std::vector<TextIds>& texts, int64_t width, const RowsOfBatch& rows_of) {
  const at::NoGradGuard no_grad;
  const int64_t tokens = count_tokens(texts), threads = at::get_num_threads();
  Tensor all = at::empty({static_cast<int64_t>(texts.size()), width}, at::kFloat);
  const bool packs = model.trunk().packs();
  const bool by_thread = model.device().is_cpu() && threads > 1 && tokens >= threads * kTokensOfOneThread / 4;
  // Small enough that all threads are busy to the end.
  const int64_t share = std::max<int64_t>(tokens / (threads * 4), kTokensOfOneThread / 8);
  const auto batches = batches_of(texts, by_thread ? std::min(share, kTokensOfOneThread) : kTokensOfAll, packs);
  const int64_t workers = by_thread ? std::min<int64_t>(threads, static_cast<int64_t>(batches.size())) : 1;
  run_all(workers, batches.size(), [&](size_t i) {
    std::vector<int64_t> lengths;
    for (const size_t text : batches[i]) lengths.push_back(length_of(texts[text]));
    const Tensor rows = rows_of(run_batch(model, texts, batches[i], packs), lengths).to(at::kCPU, at::kFloat);
    for (size_t j = 0; j < batches[i].size(); ++j) {
      all.select(0, static_cast<int64_t>(batches[i][j])).copy_(rows.select(0, static_cast<int64_t>(j)));
    }
  });
  return all;
}

}  // namespace hotswap
