#include "hotswap/tokenizers/tokenizer_config.h"

#include <algorithm>
#include <map>

#include "hotswap/base/error.h"

namespace hotswap::tokenizers {
namespace {

// "<s>", or an object with it as its content. Its id is set when it is added.
AddedToken token_of(const Json& json, bool special) {
  AddedToken token{.id = -1, .content = "", .special = special};
  if (!json.is_object()) {
    token.content = json.as<std::string>();
    return token;
  }
  token.content = json.at<std::string>("content");
  token.single_word = json.get<bool>("single_word", false);
  token.lstrip = json.get<bool>("lstrip", false);
  token.rstrip = json.get<bool>("rstrip", false);
  token.special = special || json.get<bool>("special", false);
  token.normalized = json.get<bool>("normalized", !token.special);
  return token;
}

// added_tokens_decoder: by id, but for those of the model their own ids count.
std::vector<AddedToken> listed_tokens(const Json& config) {
  std::map<int64_t, AddedToken> by_id;
  const auto listed = config.find("added_tokens_decoder");
  for (const auto& [id, entry] : listed ? listed->items() : std::vector<std::pair<std::string, Json>>{}) {
    by_id.insert_or_assign(std::strtoll(id.c_str(), nullptr, 10), token_of(entry, false));
  }
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

// Those that have a role, by name or in a list.
std::vector<AddedToken> special_tokens(const Json& config) {
  std::vector<AddedToken> tokens;
  for (const char* role :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (const auto token = config.find(role)) tokens.push_back(token_of(*token, true));
  }
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    const auto list = config.find(key);
    if (!list) continue;
    if (list->is_object()) {  // by names of their own
      for (const auto& [name, token] : list->items()) tokens.push_back(token_of(token, true));
    } else {
      for (const Json& token : list->elements()) tokens.push_back(token_of(token, true));
    }
  }
  return tokens;
}

// The "add_prefix_space" of a ByteLevel or a Metaspace, itself or in a Sequence; none where there is neither.
std::optional<bool> prefix_space(const Json& pre_tokenizer) {
  const auto type = pre_tokenizer.get<std::string>("type", "");
  if (type == "ByteLevel") return pre_tokenizer.get<bool>("add_prefix_space", true);
  if (type == "Metaspace") {
    if (const auto scheme = pre_tokenizer.get<std::string>("prepend_scheme", ""); !scheme.empty())
      return scheme != "never";
    return pre_tokenizer.get<bool>("add_prefix_space", true);
  }
  const auto parts = type == "Sequence" ? pre_tokenizer.find("pretokenizers") : std::nullopt;
  for (const Json& part : parts ? parts->elements() : std::vector<Json>{}) {
    if (const auto found = prefix_space(part)) return found;
  }
  return std::nullopt;
}

[[noreturn]] void refuse(std::string expected, std::string got, std::string next) {
  throw Error(
      {.kind = ErrorKind::kUnsupported, .wanted = std::move(expected), .got = std::move(got), .next = std::move(next)});
}

}  // namespace

void add_named_tokens(const Json& config, const Vocabulary& model, std::vector<AddedToken>& tokens) {
  auto next_id = static_cast<int64_t>(model.count());
  for (const AddedToken& token : tokens) next_id += model.find(token.content) < 0 ? 1 : 0;
  const auto add = [&](AddedToken named, bool replaces) {
    const auto same = [&](const AddedToken& token) { return token.content == named.content; };
    const auto found = std::find_if(tokens.begin(), tokens.end(), same);
    if (found == tokens.end()) {
      const int32_t of_model = model.find(named.content);
      named.id = of_model >= 0 ? of_model : next_id++;
      tokens.push_back(std::move(named));
      return;
    }
    const bool special = found->special || named.special;
    if (replaces) {
      named.id = found->id;
      *found = std::move(named);
    }
    found->special = special;
  };
  for (AddedToken& token : listed_tokens(config)) add(std::move(token), /*replaces=*/true);
  for (AddedToken& token : special_tokens(config)) add(std::move(token), /*replaces=*/false);
}

void refuse_other_ids(const Json& config, const Json& tokenizer_json) {
  if (config.get<bool>("split_special_tokens", false)) {
    refuse("special tokens that are one id each", cat("split_special_tokens in ", config.where()),
           "remove it; text that may hold special tokens is to be encoded without them");
  }
  const auto pre_tokenizer = tokenizer_json.find("pre_tokenizer");
  const auto of_file = pre_tokenizer ? prefix_space(*pre_tokenizer) : std::nullopt;
  if (!of_file || !config.has("add_prefix_space") || config.at<bool>("add_prefix_space") == *of_file) return;
  refuse(cat("add_prefix_space ", *of_file ? "true" : "false", ", as in ", pre_tokenizer->where()),
         cat(*of_file ? "false" : "true", " in ", config.where()),
         "the two files differ; save the tokenizer again with the one that is right");
}

}  // namespace hotswap::tokenizers
