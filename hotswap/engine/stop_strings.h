// Texts that end a row, as transformers' StopStringCriteria has them: one ends in the last token, wherever it began.
#pragma once

#include <string>
#include <vector>

#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {

class StopStrings {
 public:
  // rows: the prompts, without padding. Error on an empty text.
  StopStrings(const Tokenizer& tokenizer, std::vector<std::string> texts, std::vector<std::vector<int64_t>> rows);
  bool end(size_t row, int64_t token);  // the row's next one; whether it ends the row

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::string> texts_;
  size_t enough_ = 0;                       // tokens that hold any of the texts
  std::vector<std::vector<int64_t>> last_;  // of each row, so many
};

}  // namespace hotswap
