// tokenizer_config.json beside tokenizer.json: each key gives the ids that transformers gives, or is refused by its
// name. config_oracle.py makes the folders.
#include <gtest/gtest.h>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/test_data.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

using test_support::made_data;
using TokenizerConfig = test_support::WithTransformers<>;

TEST_F(TokenizerConfig, EachKeyIsUsedOrRefusedByName) {
  int used = 0, refused = 0;
  for (const Json& row : Json::read(made_data("tokenizers/config_oracle.py") / "cases.json").elements()) {
    const auto key = row.at<std::string>("key");
    const std::string what = cat(key, " ", row.raw()["value"].dump());
    std::optional<Tokenizer> tokenizer;
    try {
      tokenizer.emplace(Tokenizer::from_folder(row.at<std::string>("folder")));
    } catch (const Error& error) {
      EXPECT_FALSE(key.empty()) << error.what();
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << what << ": " << error.what();
      ++refused;
      continue;
    }
    for (const Json& text : row.child("texts").elements()) {
      const auto ids = tokenizer->ids(text.at<std::string>("text"));
      EXPECT_EQ(ids, text.at<std::vector<int64_t>>("ids")) << what << ": " << text.at<std::string>("text");
      EXPECT_EQ(tokenizer->decode(ids, true), text.at<std::string>("decoded")) << what;
    }
    ++used;
  }
  EXPECT_GT(used, 25);
  EXPECT_EQ(refused, 2);  // split_special_tokens and a prefix space that tokenizer.json has not
}

}  // namespace
}  // namespace hotswap
