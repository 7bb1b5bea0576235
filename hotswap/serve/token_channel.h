// The way of tokens from the engine's thread to the thread of their request: one channel a request, however many
// choices it has. One lock for all tokens of a step, which only these two threads ever take.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "hotswap/engine/sequence.h"
#include "hotswap/serve/api_error.h"

namespace hotswap::serve {

struct TokenEvent {
  size_t choice = 0;
  int64_t id = 0;
  Finish finish = Finish::kNot;
  std::optional<TokenLogprobs> logprobs = std::nullopt;
  int64_t cached_tokens = 0;                        // with the first token: of the prompt that did not run
  std::shared_ptr<const ApiError> error = nullptr;  // the choice ended without a token
};

class TokenChannel {
 public:
  void push(TokenEvent event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    changed_.notify_one();
  }

  // All events since the last call; waits for the first one, but not longer than `wait`: then there are none.
  std::vector<TokenEvent> take(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [&] { return !events_.empty(); });
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenEvent> events_;
};

}  // namespace hotswap::serve
