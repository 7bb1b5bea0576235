#include "hotswap/tokenizers/gguf_splits.h"

#include <algorithm>

namespace hotswap::tokenizers {
namespace {

constexpr const char* kTekkenRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char *kThreeDigits = R"(\p{N}{1,3})", *kIdeographs = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr const char* kDeepSeek3Regex =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kFalconSteps = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    {"type": "Digits", "individual_digits": false},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": false}]})";

}  // namespace

const std::vector<GgufSplit>& gguf_splits() {
  static const std::vector<GgufSplit> splits = {
      {.names = {"gpt-2", "gpt2", "phi-2", "exaone4"}},
      {.names = {"olmo", "mpt"}, .nfc = true},
      {.names = {"smollm", "starcoder", "refact"}, .digits = true},
      {.names = {"command-r"}, .nfc = true, .digits = true},
      {.names = {"qwen2"}, .regexes = {kQwen2Regex}, .nfc = true},
      {.names = {"stablelm2"}, .regexes = {kQwen2Regex}},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "glm4"},
       .regexes = {kLlama3Regex},
       .ignores_merges = true},
      {.names = {"dbrx", "smaug-bpe", "chatglm-bpe"}, .regexes = {kLlama3Regex}},
      {.names = {"tekken"}, .regexes = {kTekkenRegex}, .ignores_merges = true},
      {.names = {"gpt-4o", "llama4"}, .regexes = {kGpt4oRegex}},
      {.names = {"deepseek-v3"}, .regexes = {kThreeDigits, kIdeographs, kDeepSeek3Regex}},
      {.names = {"falcon"}, .steps = kFalconSteps}};
  return splits;
}

const GgufSplit* find_gguf_split(const std::string& name) {
  for (const GgufSplit& split : gguf_splits()) {
    if (std::find(split.names.begin(), split.names.end(), name) != split.names.end()) return &split;
  }
  return nullptr;
}

}  // namespace hotswap::tokenizers
