#include "hotswap/serve/answer_events.h"

namespace hotswap::serve {

std::string ChunkEvents::pieces(const std::vector<std::pair<size_t, TextPiece>>& pieces) {
  std::string out;
  if (!begun_ && !pieces.empty()) {
    begun_ = true;
    for (size_t choice = 0; choice < choices_; ++choice) out += format_.first(choice, include_usage_);
  }
  for (const auto& [choice, piece] : pieces) out += format_.piece(choice, piece, include_usage_);
  return out;
}

std::string ChunkEvents::end(const Usage& usage) {
  return (include_usage_ ? format_.usage(usage) : "") + "data: [DONE]\n\n";
}

}  // namespace hotswap::serve
