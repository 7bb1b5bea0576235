// tekken.json and tiktoken's files against transformers' conversion of the same.
#include <gtest/gtest.h>

#include <random>

#include "hotswap/base/sha256.h"
#include "hotswap/tokenizers/test_against_python.h"
#include "hotswap/tokenizers/test_text.h"

namespace hotswap {
namespace {

using test_support::message_of;
using test_support::Plain;
using test_support::TempFolder;

constexpr const char* kPattern = R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+)";

// Trains byte-level tokens, writes them as tekken.json and ranks.tiktoken, and each file's conversion.
constexpr const char* kRanksScript = R"(
import base64, json, sys
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.integrations.mistral.tokenizer import MistralConverter
out, license, pattern = Path(sys.argv[1]), sys.argv[2], open(sys.argv[3]).read()
t = Tokenizer(models.BPE())
t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
t.train([license], trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
bytes_of = {c: b for b, c in __import__("transformers").convert_slow_tokenizer.bytes_to_unicode().items()}
tokens = [bytes(bytes_of[c] for c in token) for token in sorted(t.get_vocab(), key=t.get_vocab().get)]
rows = [{"rank": i, "token_bytes": base64.b64encode(b).decode(), "token_str": None} for i, b in enumerate(tokens)]
special = [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(["<unk>", "<s>", "</s>", "[INST]"])]
config = {"pattern": pattern, "num_vocab_tokens": len(rows), "default_vocab_size": 660, "default_num_special_tokens": 10}
(out / "tekken.json").write_text(json.dumps({"config": config, "vocab": rows, "special_tokens": special}))
MistralConverter(str(out / "tekken.json")).converted().save(str(out / "of_tekken.json"))
(out / "ranks.tiktoken").write_text("".join(f"{r['token_bytes']} {r['rank']}\n" for r in rows))
try:
    TikTokenConverter(str(out / "ranks.tiktoken"), pattern, extra_special_tokens=["<s>", "</s>"]).converted().save(str(out / "of_tiktoken.json"))
except (ImportError, ValueError):  # tiktoken is not installed
    pass
)";

class RankedTokens : public test_support::WithTransformers<> {};

TEST_F(RankedTokens, AsTransformersConvertsThem) {
  const TempFolder folder;
  const auto script = folder.write("script.py", kRanksScript);
  const auto pattern = folder.write("pattern.txt", kPattern);
  const auto run = test_support::run_script(
      script,
      cat(folder.path().string(), " ", (test_support::source_folder() / "LICENSE").string(), " ", pattern.string()));
  ASSERT_EQ(run.status, 0) << run.output;
  std::mt19937_64 random(test_support::test_seed());
  const auto compare = [&](const Tokenizer& got, const Tokenizer& expected) {
    ASSERT_EQ(got.vocab_size(), expected.vocab_size());
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(random) + (i % 3 == 0 ? "[INST]" : "") + random_text(random);
      const Encoding ours = got.encode(text);
      const Encoding theirs = expected.encode(text);
      ASSERT_EQ(ours.ids, theirs.ids) << text;
      ASSERT_EQ(ours.offsets, theirs.offsets) << text;
      ASSERT_EQ(got.decode(ours.ids), expected.decode(ours.ids)) << text;
    }
  };
  const Tokenizer tekken = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(tekken.special_ids().eos, 2);
  compare(tekken, Tokenizer::from_file(folder / "of_tekken.json"));
  if (!std::filesystem::exists(folder / "of_tiktoken.json")) return;
  compare(Tokenizer::from_tiktoken(folder / "ranks.tiktoken", kPattern, {"<s>", "</s>"}),
          Tokenizer::from_file(folder / "of_tiktoken.json"));
}

TEST(RankedTokensErrors, AreNamed) {
  const TempFolder folder;
  const auto of_ranks = [&](const char* text) {
    const auto file = folder.write("a.tiktoken", text);
    return message_of([&] { Tokenizer::from_tiktoken(file, "."); });
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_PRED2(has, of_ranks("YQ== 0\nYg= 1\n"), "line 2");
  EXPECT_PRED2(has, of_ranks("YQ== 0\nYg== 0\n"), "line 2");
  EXPECT_PRED2(has, of_ranks("YQ==\n"), "line 1");
  EXPECT_PRED2(has, of_ranks("YQ== -1\n"), "line 1");
  EXPECT_PRED2(has, of_ranks("YQ== 99999999999999999999\n"), "line 1");
  EXPECT_PRED2(has, of_ranks("YQ== 2000000000\n"), "ids from 0");
  EXPECT_PRED2(has, message_of([&] { Tokenizer::from_file(folder / "a.tiktoken"); }), "from_tiktoken");
  const auto of_tekken = [&](const char* config, const char* special, const char* vocab) {
    const auto file = folder.write("tekken.json", cat(R"({"config":{"pattern":".")", config, R"(},"special_tokens":[)",
                                                      special, R"(],"vocab":[)", vocab, "]}"));
    return message_of([&] { Tokenizer::from_file(file); });
  };
  constexpr const char* kSpecial = R"({"rank":0,"token_str":"<s>"})";
  constexpr const char* kVocab = R"({"rank":0,"token_bytes":"YQ==","token_str":"a"})";
  EXPECT_EQ(of_tekken("", kSpecial, kVocab), "no error");
  EXPECT_PRED2(has, of_tekken(R"(,"default_num_special_tokens":0)", kSpecial, kVocab), "default_num_special_tokens");
  EXPECT_PRED2(has, of_tekken(R"(,"default_num_special_tokens":99999999999)", kSpecial, kVocab), "default_num_special");
  EXPECT_PRED2(has, of_tekken("", R"({"rank":7,"token_str":"<s>"})", kVocab), "ranks from 0");
  EXPECT_PRED2(has, of_tekken("", kSpecial, R"({"rank":0,"token_bytes":"Y","token_str":"a"})"), "base64");
  EXPECT_PRED2(has, of_tekken("", kSpecial, R"({"rank":0,"token_bytes":"","token_str":"a"})"), "0 bytes");
}

}  // namespace
}  // namespace hotswap
