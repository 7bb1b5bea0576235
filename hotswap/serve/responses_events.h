// An answer as /v1/responses has it: items of output (thoughts, a message, calls), as events while they come, and as
// one object at the end.
#pragma once

#include <string>

#include "hotswap/serve/answer_events.h"

namespace hotswap::serve {

class ResponsesEvents : public AnswerEvents {
 public:
  // `settings`: fields of the request that the answer repeats
  ResponsesEvents(OutJson settings, const std::string& model);
  std::string pieces(const std::vector<std::pair<size_t, TextPiece>>& pieces) override;
  std::string end(const Usage& usage) override;
  std::string failed(const ApiError& error) override;
  OutJson response() const;  // so far

 private:
  void begin();
  void add(const char* type, OutJson fields);
  void open(MessagePart::Kind kind, const std::string& name = "");
  void close();
  void text(MessagePart::Kind kind, const std::string& more);
  void add_part(const MessagePart& part);
  std::string take() { return std::exchange(out_, {}); }

  const OutJson settings_;
  const std::string id_ = random_id("resp_"), model_;
  const int64_t created_;
  OutJson output_ = OutJson::array();
  bool is_open_ = false;  // the last item still comes
  MessagePart::Kind kind_ = MessagePart::Kind::kContent;
  std::string finish_reason_, status_ = "in_progress";
  OutJson usage_ = nullptr, error_ = nullptr;
  int64_t sequence_ = 0;
  std::string out_;
};

}  // namespace hotswap::serve
