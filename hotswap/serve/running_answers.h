// The answers to one request while they are made: its sequences in the engine, and their texts so far.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "hotswap/serve/answer_events.h"
#include "hotswap/serve/engine_loop.h"
#include "hotswap/serve/responses_request.h"

namespace hotswap::serve {

class RunningAnswers {
 public:
  // Hands all sequences of the request to the engine. ApiError 429 or 503 where it takes none.
  RunningAnswers(const ServedModel& model, EngineLoop& engine, const GenerationRequest& request);
  ~RunningAnswers();  // cancels those that still run
  RunningAnswers(const RunningAnswers&) = delete;
  RunningAnswers& operator=(const RunningAnswers&) = delete;

  // What came since the last call, by choice; waits for the first piece, but not longer than `wait`. ApiError where
  // the engine could not go on with one.
  std::vector<std::pair<size_t, TextPiece>> take(std::chrono::milliseconds wait);
  bool ended() const { return open_ == 0; }
  Usage usage() const;

 private:
  std::shared_ptr<TokenChannel> channel_ = std::make_shared<TokenChannel>();
  std::vector<std::shared_ptr<Job>> jobs_;  // one a choice
  void read_message(size_t choice, TextPiece& piece);
  void validate(size_t choice, const TokenEvent& event, TextPiece& piece);
  std::vector<AnswerText> texts_;
  std::vector<MessageParser> parsers_;  // one a choice, where a message has more than content
  int64_t reasoning_tokens_ = 0;
  std::shared_ptr<const grammar::SchemaJson> schema_;
  std::vector<std::string> whole_;  // each choice's text, where there is a schema
  Metrics& metrics_;
  size_t open_;
  const size_t answers_per_prompt_;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0;
};

// All answers, as OpenAI's JSON. `left`: whether the client has gone; then the answers are cancelled, and "" returned.
std::string whole_answer(const ServedModel& model, EngineLoop& engine, const GenerationRequest& request,
                         const std::function<bool()>& left);

// The same as a stream of events.
class AnswerStream {
 public:
  AnswerStream(const ServedModel& model, EngineLoop& engine, const GenerationRequest& request,
               std::unique_ptr<AnswerEvents> events)
      : events_(std::move(events)), answers_(model, engine, request) {}
  // Writes what there is, and a comment where there was nothing for a while. False where the client has left.
  bool next(const std::function<bool(const std::string&)>& write, const std::function<bool()>& left);
  bool ended() const { return ended_; }

 private:
  std::string events();
  std::unique_ptr<AnswerEvents> events_;
  RunningAnswers answers_;
  Clock::time_point last_write_ = Clock::now();
  bool ended_ = false;
};

// Of a request for one answer: all of it, as /v1/responses has it; "" as above.
std::string whole_response(const ServedModel& model, EngineLoop& engine, const ResponsesRequest& request,
                           const std::function<bool()>& left);
// How a stream of the request's answers is written.
std::unique_ptr<AnswerEvents> chunk_events(const ServedModel& model, const GenerationRequest& request);

}  // namespace hotswap::serve
