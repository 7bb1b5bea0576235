#include "hotswap/tokenizers/stream_decoder.h"

#include <gtest/gtest.h>

#include "hotswap/base/test_data.h"
#include "hotswap/tokenizers/test_text.h"

namespace hotswap {
namespace {

using test_support::golden_folders;
using test_support::golden_name;
using test_support::GoldenFolder;

class Streams : public testing::TestWithParam<GoldenFolder> {
 protected:
  static Tokenizer read_tokenizer() { return Tokenizer::from_file(GetParam().path() / "tokenizer.json"); }
};

TEST_P(Streams, GiveTheWholeTextInTheEnd) {
  const Tokenizer tokenizer = read_tokenizer();
  const uint64_t seed = test_support::test_seed();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    std::vector<int64_t> ids;
    while (ids.size() < 150 && random() % 12 != 0) {
      for (const int64_t id : tokenizer.ids(random_text(random), random() % 4 == 0)) ids.push_back(id);
      // Ids of all kinds: half characters, bytes, special tokens, no tokens at all.
      for (size_t n = random() % 4; n > 0; --n)
        ids.push_back(static_cast<int64_t>(random() % (tokenizer.vocab_size() + 5)));
      for (size_t n = random() % 3; n > 0; --n) ids.push_back(static_cast<int64_t>(random() % 300));
    }
    const bool skip = random() % 2 == 0;
    StreamDecoder stream(tokenizer, skip);
    std::string text;
    for (const int64_t id : ids) text += stream.push(id);
    text += stream.finish();
    ASSERT_EQ(text, tokenizer.decode(ids, skip));
  }
}

TEST_P(Streams, GiveTextAsSoonAsItIsCertain) {
  const Tokenizer tokenizer = read_tokenizer();
  StreamDecoder stream(tokenizer);
  const std::vector<int64_t> ids = tokenizer.ids("Once upon a time, there was a d\u00e9j\u00e0 vu", false);
  std::string text;
  size_t silent = 0;
  for (const int64_t id : ids) {
    const std::string part = stream.push(id);
    silent += part.empty();
    EXPECT_EQ(part.find("\uFFFD"), std::string::npos);
    text += part;
  }
  EXPECT_LE(silent, 6u);  // the halves of the two accented letters, a first blank
  EXPECT_EQ(text + stream.finish(), tokenizer.decode(ids));
  EXPECT_EQ(stream.push(ids[0]) + stream.finish(), tokenizer.decode({{ids[0]}}));
}

// A blank that a decoder drops at the beginning of a text stays between a text and what continues it.
TEST_P(Streams, ContinueATextWhereItEnds) {
  const Tokenizer tokenizer = read_tokenizer();
  const std::vector<int64_t> ids =
      tokenizer.ids("Once upon a time, there was a d\u00e9j\u00e0 vu of the red ball", true);
  const std::string whole = tokenizer.decode(ids, /*skip_special_tokens=*/true);
  for (size_t known = 0; known <= ids.size(); ++known) {
    const std::span<const int64_t> before(ids.data(), known);
    const std::string text = tokenizer.decode({before.begin(), before.end()}, /*skip_special_tokens=*/true);
    if (!whole.starts_with(text)) continue;  // it ends inside a character
    StreamDecoder stream(tokenizer, /*skip_special_tokens=*/true, before);
    std::string more;
    for (const int64_t id : std::span(ids).subspan(known)) more += stream.push(id);
    EXPECT_EQ(text + more + stream.finish(), whole) << known << " of " << ids.size();
  }
}

INSTANTIATE_TEST_SUITE_P(Data, Streams,
                         testing::ValuesIn(golden_folders(
                             "tokenizers/golden_tokenizers.py",
                             {"tokenizers/digits", "tokenizers/metaspace", "tokenizers/normalizers"},
                             {"models/stories260k", "models/smollm2-135m-instruct", "tokenizers/mistral-v0.3"})),
                         golden_name);

}  // namespace
}  // namespace hotswap
