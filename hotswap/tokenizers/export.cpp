#include "hotswap/tokenizers/export.h"

#include <nlohmann/json.hpp>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;
using namespace gguf_token;

OutJson byte_level(bool add_prefix_space) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", true}};
}

OutJson pre_tokenizer_of(const GgufVocabulary& v) {
  if (v.model == "gpt2" && v.pre == "smollm") {
    return {{"type", "Sequence"},
            {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level(false)}}};
  }
  if (v.model == "gpt2" && (v.pre == "gpt-2" || v.pre == "gpt2")) return byte_level(v.add_space_prefix.value_or(false));
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a tokenizer of the kind smollm or gpt-2 in ", v.where, ", to write it as tokenizer.json"),
               .got = cat(v.model, ", ", v.pre.empty() ? "default" : v.pre),
               .next = "put the model's tokenizer.json beside its weights: it is copied then"});
}

// By hand: nlohmann's ordered objects are searched from end to end for every key, minutes for a vocabulary.
std::string vocabulary_text(const GgufVocabulary& v) {
  std::string text = "{";
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    text += cat(id > 0 ? ", " : "", OutJson(v.tokens[id]).dump(), ": ", id);
  }
  return text + "}";
}

std::string tokenizer_json(const GgufVocabulary& v) {
  OutJson added = OutJson::array();
  for (size_t id = 0; id < v.token_types.size(); ++id) {
    const bool special = v.token_types[id] == kControl;
    if (!special && v.token_types[id] != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", v.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  return cat("{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n\"added_tokens\": ", added.dump(),
             ",\n\"normalizer\": null,\n\"pre_tokenizer\": ", pre_tokenizer_of(v).dump(),
             ",\n\"post_processor\": null,\n\"decoder\": ", byte_level(true).dump(),
             ",\n\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": "
             "null, \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"vocab\": ",
             vocabulary_text(v), ",\n\"merges\": ", OutJson(v.merges).dump(), "}}\n");
}

}  // namespace

void write_tokenizer(const std::filesystem::path& folder, const GgufVocabulary& v,
                     const std::optional<std::string>& chat_template) {
  write_file(folder / "tokenizer.json", tokenizer_json(v));
  OutJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const auto name = [&](const char* key, const std::optional<int64_t>& id) {
    if (id) config[key] = v.tokens.at(static_cast<size_t>(*id));
  };
  name("bos_token", v.bos);
  name("eos_token", v.eos);
  name("unk_token", v.unk);
  name("pad_token", v.pad);
  if (chat_template) config["chat_template"] = *chat_template;
  write_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace hotswap
