// Random strings through many small tokenizers, here and in the `tokenizers` library of Python, which is the oracle.
#include <gtest/gtest.h>

#include <random>

#include "hotswap/tokenizers/test_against_python.h"
#include "hotswap/tokenizers/test_text.h"

namespace hotswap {
namespace {

using test_support::expect_as_python;
using test_support::Plain;

// A tokenizer.json with a small vocabulary: all bytes of the byte-level alphabet, byte fallbacks or both.
std::string small_tokenizer(const char* normalizer, const char* pre_tokenizer, const char* post_processor,
                            const char* decoder, const char* options = "") {
  Plain vocabulary = Plain::object();
  int64_t next = 0;
  const auto add = [&](const std::string& token) {
    if (!vocabulary.contains(token)) vocabulary[token] = next++;
  };
  for (const char* token : {"<unk>", "<s>", "</s>"}) add(token);
  const bool byte_level = std::string(pre_tokenizer).find("ByteLevel") != std::string::npos;
  if (byte_level) {
    for (char32_t c = 0x21; c < 0x144; ++c) add(utf8_of(c));
  } else {
    for (const char* c : {"\u2581", "e", "t", "a", "o", "h", "n", "\u00e9", " ", "\n", "1",
                          "2",      ".", ",", "I", "l", "s", "w", "r",      "d", "'"})
      add(c);
    char name[8];
    for (int byte = 0; byte < 256 && std::string(options).find("byte_fallback\":true") != std::string::npos; ++byte) {
      std::snprintf(name, sizeof(name), "<0x%02X>", byte);
      add(name);
    }
  }
  const std::string blank = byte_level ? "\u0120" : "\u2581";
  Plain merges = Plain::array();
  const std::pair<std::string, std::string> pairs[] = {{"h", "e"},    {"t", "he"},  {blank, "t"},   {blank, "the"},
                                                       {"l", "l"},    {blank, "a"}, {blank, blank}, {"he", "ll"},
                                                       {"hell", "o"}, {"1", "2"},   {"n", "d"},     {"e", "\u00e9"}};
  for (const auto& [left, right] : pairs) {
    if (byte_level && right == "\u00e9") continue;
    add(left);
    add(right);
    add(left + right);
    merges.push_back(cat(left, " ", right));
  }
  const auto token = [](const char* content, int64_t id, std::string_view flags) {
    const auto has = [&](char flag) { return flags.find(flag) != std::string_view::npos; };
    return Plain({{"id", id},
                  {"content", content},
                  {"single_word", has('s')},
                  {"lstrip", has('l')},
                  {"rstrip", has('r')},
                  {"normalized", has('n')},
                  {"special", has('x')}})
        .dump();
  };
  // s: single_word, l: lstrip, r: rstrip, n: normalized, x: special
  return cat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)", token("<unk>", 0, "x"), ",",
             token("<s>", 1, "x"), ",", token("</s>", 2, "x"), ",", token("<mask>", next, "lrx"), ",",
             token("WORD", next + 1, "s"), ",", token("Norm Al", next + 2, "n"), ",", token("<m", next + 3, ""), ",",
             token("lll", next + 4, "ln"), "],\"normalizer\":", normalizer, ",\"pre_tokenizer\":", pre_tokenizer,
             ",\"post_processor\":", post_processor, ",\"decoder\":", decoder, R"(,"model":{"type":"BPE","unk_token":)",
             byte_level ? "null" : "\"<unk>\"", options, ",\"vocab\":", vocabulary.dump(),
             ",\"merges\":", merges.dump(), "}}");
}

constexpr const char* kTemplate =
    R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"e","type_id":2}}],)"
    R"("pair":[{"Sequence":{"id":"B","type_id":1}},{"SpecialToken":{"id":"e","type_id":0}},{"Sequence":{"id":"A","type_id":3}}],)"
    R"("special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]},"e":{"id":"e","ids":[2,1],"tokens":["</s>","<s>"]}}})";

std::vector<std::string> tokenizers() {
  constexpr const char* kBytes =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  constexpr const char* kBytesPrefix =
      R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";
  constexpr const char* kFallback = R"(,"byte_fallback":true,"fuse_unk":true)";
  constexpr const char* kSpm =
      R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})";
  std::vector<std::string> all;
  for (const char* form : {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}) {
    all.push_back(small_tokenizer(cat(R"({"type":")", form, R"("})").c_str(), kBytes, kBytesPrefix, kBytes));
    all.push_back(small_tokenizer(
        cat(R"({"type":"Sequence","normalizers":[{"type":")", form,
            R"("},{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Replace","pattern":{"Regex":"\\s+"},"content":"▁"},{"type":"Prepend","prepend":"▁"}]})")
            .c_str(),
        "null", kTemplate, kSpm, kFallback));
  }
  all.push_back(small_tokenizer("null", kBytesPrefix, kBytesPrefix, kBytes, R"(,"ignore_merges":true)"));
  all.push_back(small_tokenizer(
      "null",
      R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true},{"type":"Punctuation","behavior":"Isolated"}]})",
      "null", kBytes));
  all.push_back(small_tokenizer(
      "null",
      R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":false},{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":false}]})",
      cat(R"({"type":"Sequence","processors":[{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true},)",
          kTemplate, "]}")
          .c_str(),
      kBytes));
  for (const char* behavior : {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    for (const char* invert : {"true", "false"}) {
      all.push_back(small_tokenizer("null",
                                    cat(R"({"type":"Split","pattern":{"Regex":"[a-i]+|\\s"},"behavior":")", behavior,
                                        R"(","invert":)", invert, "}")
                                        .c_str(),
                                    "null", "null"));
    }
    all.push_back(small_tokenizer(
        "null",
        cat(R"({"type":"Split","pattern":{"String":"ll"},"behavior":")", behavior, R"(","invert":false})").c_str(),
        kTemplate, "null"));
  }
  for (const char* scheme : {"first", "never", "always"}) {
    for (const char* split : {"true", "false"}) {
      const std::string metaspace =
          cat(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":")", scheme, R"(","split":)", split, "}");
      all.push_back(small_tokenizer("null", metaspace.c_str(), kTemplate, metaspace.c_str(), kFallback));
    }
  }
  for (const char* kind : {"Whitespace", "WhitespaceSplit"}) {
    all.push_back(small_tokenizer(R"({"type":"Replace","pattern":{"String":"e"},"content":"é"})",
                                  cat(R"({"type":")", kind, R"("})").c_str(), "null",
                                  R"({"type":"BPEDecoder","suffix":"o"})", R"(,"fuse_unk":false)"));
  }
  for (
      const char* regex :
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+)",
       R"(\w+|\d|[\S&&]|$)", R"(\b\w|\W+)", R"(^.|a{1,2}+|\h+|[[:space:]]+|\p{Han}+|[一-龥]|\P{L}|x(?i)A|b)",
       R"((?m:a.)|(?<=t)h|(?<!t)h|[\S\d]|o*)"}) {
    if (std::string(regex).find("&&") != std::string::npos) continue;
    const std::string split =
        Plain({{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}}).dump();
    all.push_back(
        small_tokenizer("null",
                        cat(R"({"type":"Sequence","pretokenizers":[)", split,
                            R"(,{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})")
                            .c_str(),
                        kBytes, kBytes));
  }
  return all;
}

class AgainstPython : public test_support::WithTransformers<> {};

TEST_F(AgainstPython, RandomStrings) {
  const uint64_t seed = test_support::test_seed();
  RecordProperty("seed", std::to_string(seed));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  Plain jobs = Plain::array();
  for (const std::string& json : tokenizers()) {
    Plain texts = Plain::array();
    for (int i = 0; i < 30; ++i) texts.push_back(random_text(random));
    jobs.push_back({{"tokenizer", json}, {"texts", texts}});
  }
  for (const auto& trained : test_support::golden_folders(
           "tokenizers/golden_tokenizers.py",
           {"tokenizers/gpt2", "tokenizers/split_nfc", "tokenizers/metaspace", "tokenizers/normalizers"},
           {"models/stories260k", "models/smollm2-135m-instruct", "tokenizers/gpt2", "tokenizers/mistral-v0.3"})) {
    Plain texts = Plain::array();
    for (int i = 0; i < 80; ++i) texts.push_back(random_text(random));
    jobs.push_back({{"file", (trained.path() / "tokenizer.json").string()}, {"texts", texts}});
  }

  expect_as_python(jobs);
}

}  // namespace
}  // namespace hotswap
