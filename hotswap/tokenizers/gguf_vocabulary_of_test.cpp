// tokenizer.json as a GGUF file's metadata, and back: the same ids.
#include "hotswap/tokenizers/gguf_vocabulary_of.h"

#include <gtest/gtest.h>

#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/test_data.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::made_data;
using test_support::message_of;
using test_support::TempFolder;

fs::path made(const std::string& kind) { return made_data("tokenizers/golden_tokenizers.py") / "tokenizers" / kind; }

// Every string of the golden file beside the tokenizer.
// But for those with <unk> in them, which our reader of such files does not look for in a text.
void expect_same_ids(const fs::path& folder, const GgufVocabulary& vocabulary, const fs::path& golden) {
  const Tokenizer expected = Tokenizer::from_folder(folder), got = Tokenizer::from_vocabulary(vocabulary);
  int64_t compared = 0;
  for (const Json& line : Json::read(golden).child("cases").elements()) {
    const auto text = line.at<std::string>("text");
    if (text.find("<unk>") != std::string::npos) continue;
    EXPECT_EQ(got.ids(text), expected.ids(text)) << text;
    ++compared;
  }
  EXPECT_GT(compared, 100);
}

TEST(GgufVocabularyOf, ByteLevelTokenizersComeBack) {
  for (const auto& [kind, pre] :
       {std::pair("gpt2", "gpt-2"), std::pair("digits", "smollm"), std::pair("split_nfc", "qwen2")}) {
    const auto v = gguf_vocabulary_of(made(kind), "llama", 530);
    EXPECT_EQ(v.model, "gpt2") << kind;
    EXPECT_EQ(v.pre, pre) << kind;
    ASSERT_EQ(v.tokens.size(), 530U);
    EXPECT_EQ(v.tokens[529], "[PAD529]");
    EXPECT_EQ(v.token_types[529], 5);
    EXPECT_EQ(v.token_types[0], 3);  // <|endoftext|>
    EXPECT_EQ(v.add_bos, false);
    expect_same_ids(made(kind), v, made(kind) / "tokenizer_golden.json");
  }
  const auto v = gguf_vocabulary_of(made("split_nfc"), "qwen3", 514);
  EXPECT_EQ(v.token_types[512], 4);  // <think>, which is not special
}

TEST(GgufVocabularyOf, SentencePieceComesBackByScores) {
  const TempFolder folder;
  auto json = nlohmann::json::parse(read_file(made("normalizers") / "tokenizer.json"));
  auto& steps = json["normalizer"]["normalizers"];
  steps.erase(0), steps.erase(0);  // what llama.cpp has no setting for
  folder.write("tokenizer.json", json.dump());
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})");
  const auto v = gguf_vocabulary_of(folder.path(), "llama", 512);
  EXPECT_EQ(v.model, "llama");
  EXPECT_TRUE(v.merges.empty());
  ASSERT_EQ(v.scores.size(), 512U);
  EXPECT_EQ(v.token_types[0], 2);
  EXPECT_EQ(v.token_types[3 + 10], 6);
  EXPECT_EQ(v.add_bos, true);
  EXPECT_EQ(v.bos, 1);
  EXPECT_EQ(v.add_space_prefix, true);
  expect_same_ids(folder.path(), v, made("normalizers") / "tokenizer_golden.json");
}

// Another name would make other ids without a word.
TEST(GgufVocabularyOf, RefusesByNameWhatLlamaCppWouldCutOtherwise) {
  const auto refused = [](const fs::path& folder, const char* expected) {
    const std::string message = message_of([&] { gguf_vocabulary_of(folder, "llama", 600); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  };
  const TempFolder folder;
  const auto changed = [&](const char* kind, const auto& change) {
    auto json = nlohmann::json::parse(read_file(made(kind) / "tokenizer.json"));
    change(json);
    folder.write("tokenizer.json", json.dump());
    return folder.path();
  };
  refused(changed("digits", [](auto& json) { json["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = false; }),
          "got normalizer [], pre_tokenizer [{");
  refused(folder.path(), "cuts texts as one of these: gpt-2, smollm, qwen2, llama-bpe in ");
  refused(changed("split_nfc", [](auto& json) { json["normalizer"] = nullptr; }), "got normalizer []");
  refused(changed("gpt2", [](auto& json) { json["pre_tokenizer"]["add_prefix_space"] = true; }),
          "[ByteLevel with prefix space]");
  refused(changed("gpt2", [](auto& json) { json["model"]["ignore_merges"] = true; }), "ignore_merges 1");
  refused(changed("gpt2", [](auto& json) { json["added_tokens"][0]["lstrip"] = true; }), "with lstrip");
  // By its steps, this looks like what llama.cpp does; its ids show whether it is.
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  refused(changed("normalizers", [](auto&) {}), "other ids for a text of many scripts");
  const std::string small = message_of([&] { gguf_vocabulary_of(made("gpt2"), "llama", 500); });
  EXPECT_NE(small.find("token ids below vocab_size, 500"), std::string::npos) << small;
}

TEST(GgufVocabularyOf, TokenizersOfTheHubComeBack) {
  for (const auto& [name, pre, size] :
       {std::tuple("models/smollm2-135m-instruct", "smollm", 49152U), std::tuple("tokenizers/gpt2", "gpt-2", 50257U),
        std::tuple("tokenizers/qwen3", "qwen2", 151936U)}) {
    const fs::path folder = test_support::recorded_data() / name;
    if (!fs::exists(folder)) continue;
    const auto v = gguf_vocabulary_of(folder, "llama", size);
    EXPECT_EQ(v.pre, pre);
    expect_same_ids(folder, v, folder / "tokenizer_golden.json");
  }
}

}  // namespace
}  // namespace hotswap
