// The files that `hotswap train` reads, as examples.
//
// .txt: one text. It is cut into examples of max_length tokens; a rest that fills none is dropped.
// .jsonl: an object a line, all of one of these forms:
// - {"text": "..."}: every token is learned, an end of text is added;
// - {"prompt": "...", "completion": "..."}: the completion is learned; both may be lists of messages;
// - {"messages": [{"role", "content"}, ...]}: the assistant's turns are learned; "tools" may stand beside.
// .bin: token ids, of Megatron (name.idx beside it) or llm.c; cut as a text is, and never read as a whole.
//
// Errors name the file and the line.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "hotswap/chat/chat_template.h"
#include "hotswap/tokenizers/tokenizer.h"
#include "hotswap/training/data/bins.h"
#include "hotswap/training/data/dataset.h"

namespace hotswap {

struct TrainFileOptions {
  int64_t max_length = 1024;                        // tokens of an example; a longer one is cut at its end
  std::optional<ChatTemplate> chat = std::nullopt;  // for messages
  int64_t pad_id = 0;
  Packing packing = Packing::kNone;  // of .jsonl: several examples in a row of max_length
  int64_t vocab_size = 0;            // the model's, which the ids of .bin are compared with; 0: not
};

struct TrainFile {
  std::shared_ptr<const Dataset> dataset;
  int64_t packed = 0;   // examples that were packed into those of the dataset
  int64_t tokens = 0;   // in the examples
  int64_t learned = 0;  // of them with a label
  int64_t longest = 0;  // tokens of the longest example, or of a packed row where those of it see each other
  int64_t cut = 0;      // examples that were longer than max_length
  int64_t dropped = 0;  // examples of which nothing would be learned; of a text, the tokens of its rest
};

// Error where nothing is left to learn.
TrainFile read_train_file(const std::filesystem::path& file, const Tokenizer& tokenizer,
                          const TrainFileOptions& options);

}  // namespace hotswap
