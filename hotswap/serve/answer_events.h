// What a stream of answers writes, in the form of its protocol: server-sent events.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "hotswap/serve/answer_format.h"

namespace hotswap::serve {

class AnswerEvents {
 public:
  virtual ~AnswerEvents() = default;
  // Of what has come, by choice; none yet where the list is empty.
  virtual std::string pieces(const std::vector<std::pair<size_t, TextPiece>>& pieces) = 0;
  virtual std::string end(const Usage& usage) = 0;
  virtual std::string failed(const ApiError& error) = 0;  // the answer has begun: its status is 200
};

// Chunks of /v1/chat/completions and /v1/completions.
class ChunkEvents : public AnswerEvents {
 public:
  ChunkEvents(AnswerFormat format, size_t choices, bool include_usage)
      : format_(std::move(format)), include_usage_(include_usage), choices_(choices) {}
  std::string pieces(const std::vector<std::pair<size_t, TextPiece>>& pieces) override;
  std::string end(const Usage& usage) override;
  std::string failed(const ApiError& error) override { return "data: " + error.json() + "\n\n"; }

 private:
  AnswerFormat format_;
  const bool include_usage_;
  const size_t choices_;
  bool begun_ = false;
};

}  // namespace hotswap::serve
