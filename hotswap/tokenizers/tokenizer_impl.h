// What a Tokenizer is made of.
#pragma once

#include <algorithm>
#include <mutex>
#include <thread>

#include "hotswap/tokenizers/added_tokens.h"
#include "hotswap/tokenizers/decoder.h"
#include "hotswap/tokenizers/model.h"
#include "hotswap/tokenizers/normalizer.h"
#include "hotswap/tokenizers/post_processor.h"
#include "hotswap/tokenizers/pre_tokenizer.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {

// Scratch space that threads borrow. What is free is kept for the next thread, up to one a core: a cache of words has 2
// MB when it is new and grows with the words that it sees, and a server has a thread for each of its clients.
class ScratchPool {
 public:
  std::unique_ptr<tokenizers::Model::Scratch> take(const tokenizers::Model& model) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return model.make_scratch();
    auto scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<tokenizers::Model::Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    if (free_.size() < max_free()) free_.push_back(std::move(scratch));
  }
  size_t free() const {
    const std::lock_guard lock(mutex_);
    return free_.size();
  }
  static size_t max_free() {
    static const size_t cores = std::max(std::thread::hardware_concurrency(), 1u);
    return cores;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<tokenizers::Model::Scratch>> free_;
};

struct Tokenizer::Parts {
  std::unique_ptr<tokenizers::Normalizer> normalizer;  // may be null, as the next two
  std::unique_ptr<tokenizers::PreTokenizer> pre_tokenizer;
  std::unique_ptr<tokenizers::PostProcessor> post_processor;
  std::unique_ptr<tokenizers::Decoder> decoder;  // null: tokens are joined by blanks
  std::unique_ptr<tokenizers::Model> model;
  std::unique_ptr<tokenizers::AddedTokens> added;
  SpecialIds special;
  std::optional<Truncation> truncation;  // of the file
  std::optional<Padding> padding;
  mutable ScratchPool scratch;

  // The token that stands for the id while decoding; null when there is none.
  const std::string* token(int64_t id) const {
    if (added->find(id) != nullptr) return &added->decoded(id);
    return model->vocabulary().has(id) ? &model->vocabulary().token(static_cast<int32_t>(id)) : nullptr;
  }
  // To be called once all parts are there.
  void finish() {
    if (pre_tokenizer && model->reads_bytes()) pre_tokenizer->leave_bytes_to_model();
  }
};

}  // namespace hotswap
