// Strings through tokenizers of every kind, against what Python's `tokenizers` made of them: small ones that
// golden_tokenizers.py trains, and the recorded ones of real models where they are.
#include <gtest/gtest.h>

#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/sha256.h"
#include "hotswap/base/test_data.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

using test_support::golden_folders;
using test_support::golden_name;
using test_support::GoldenFolder;
using Ids = std::vector<int64_t>;

class Golden : public testing::TestWithParam<GoldenFolder> {
 protected:
  static fs::path folder() { return GetParam().path(); }
  static const Tokenizer& tokenizer() {  // read once for each folder
    static std::map<fs::path, Tokenizer> read;
    auto found = read.find(folder());
    if (found == read.end()) found = read.emplace(folder(), Tokenizer::from_file(folder() / "tokenizer.json")).first;
    return found->second;
  }
};

TEST_P(Golden, Strings) {
  const Json golden = Json::read(folder() / "tokenizer_golden.json");
  EXPECT_EQ(tokenizer().vocab_size(), static_cast<size_t>(golden.at<int64_t>("vocab_size_with_added")));
  size_t count = 0;
  for (const Json& c : golden.child("cases").elements()) {
    const auto text = c.at<std::string>("text");
    const auto ids = c.at<Ids>("ids");
    ASSERT_EQ(tokenizer().ids(text, false), ids) << c.raw().dump();
    ASSERT_EQ(tokenizer().encode(text, false).ids, ids) << c.raw().dump();
    const Ids with_special = c.get<Ids>("ids_with_special", ids);
    ASSERT_EQ(tokenizer().ids(text), with_special) << c.raw().dump();
    const auto decoded = c.get<std::string>("decoded", text);
    ASSERT_EQ(tokenizer().decode(ids), decoded) << c.raw().dump();
    ASSERT_EQ(tokenizer().decode(with_special, true), c.get<std::string>("decoded_skip_special", decoded))
        << c.raw().dump();
    ++count;
  }
  EXPECT_GE(count, 250u);
}

TEST_P(Golden, PairsAndOffsets) {
  const Json golden = Json::read(folder() / "tokenizer_golden.json");
  for (const Json& c : golden.child("pairs").elements()) {
    const Encoding got = tokenizer().encode_pair(c.at<std::string>("a"), c.at<std::string>("b"));
    EXPECT_EQ(got.ids, c.at<Ids>("ids")) << c.raw().dump();
    EXPECT_EQ(got.type_ids, c.at<Ids>("type_ids")) << c.raw().dump();
    EXPECT_EQ(got.tokens.size(), got.ids.size());
    EXPECT_EQ(got.offsets.size(), got.ids.size());
  }
  for (const Json& c : golden.child("offsets").elements()) {
    const Encoding got = tokenizer().encode(c.at<std::string>("text"), false);
    EXPECT_EQ(got.ids, c.at<Ids>("ids")) << c.raw().dump();
    EXPECT_EQ(got.tokens, c.at<std::vector<std::string>>("tokens")) << c.raw().dump();
    std::vector<Ids> offsets;
    for (const auto& [begin, end] : got.offsets) offsets.push_back({begin, end});
    std::vector<Ids> wanted;
    for (const Json& pair : c.child("char_offsets").elements()) wanted.push_back(pair.as<Ids>());
    EXPECT_EQ(offsets, wanted) << c.raw().dump();
  }
}

TEST_P(Golden, LongTexts) {
  const Json golden = Json::read(folder() / "tokenizer_golden.json");
  for (const Json& c : golden.child("long_texts").elements()) {
    const std::string text = read_file(GetParam().root() / c.at<std::string>("file"));
    const Ids ids = tokenizer().ids(text, false);
    EXPECT_EQ(ids.size(), static_cast<size_t>(c.at<int64_t>("count"))) << c.at<std::string>("file");
    std::string bytes;
    for (const int64_t id : ids) {
      for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(id >> shift);
    }
    const std::span<const uint8_t> view(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    EXPECT_EQ(to_hex(sha256(view)), c.at<std::string>("sha256_of_int32_le_ids")) << c.at<std::string>("file");
    EXPECT_EQ(tokenizer().decode(ids) == text, c.at<bool>("round_trip")) << c.at<std::string>("file");
  }
}

class GoldenChats : public Golden {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenChats);

TEST_P(GoldenChats, Rendered) {
  for (const Json& c : Json::read(folder() / "chat_golden.json").child("cases").elements()) {
    if (c.has("error")) continue;
    EXPECT_EQ(tokenizer().ids(c.at<std::string>("rendered"), false), c.at<Ids>("ids")) << c.at<std::string>("name");
  }
}

constexpr const char* kScript = "tokenizers/golden_tokenizers.py";
INSTANTIATE_TEST_SUITE_P(
    Data, Golden,
    testing::ValuesIn(golden_folders(kScript,
                                     {"tokenizers/gpt2", "tokenizers/digits", "tokenizers/split_nfc",
                                      "tokenizers/metaspace", "tokenizers/normalizers"},
                                     {"models/stories260k", "models/smollm2-135m-instruct", "tokenizers/gpt2",
                                      "tokenizers/qwen3", "tokenizers/mistral-v0.3"})),
    golden_name);
INSTANTIATE_TEST_SUITE_P(Data, GoldenChats,
                         testing::ValuesIn(golden_folders(
                             "", {}, {"models/smollm2-135m-instruct", "tokenizers/qwen3", "tokenizers/mistral-v0.3"})),
                         golden_name);

}  // namespace
}  // namespace hotswap
