#include "hotswap/models/config_names.h"

#include <cctype>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string with_theirs(std::string text, const ConfigNames& names) {
  for (const auto& [theirs, ours] : names) {
    const std::string word = ours;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
      const size_t end = at + word.size();
      const bool whole = (at == 0 || !is_of_word(text[at - 1])) && (end == text.size() || !is_of_word(text[end]));
      if (whole) text.erase(at, word.size()).insert(at, theirs);
    }
  }
  return text;
}

}  // namespace

ModelConfig read_by_names(const Json& config, const ConfigNames& names, ModelConfig (*read)(const Json& named)) {
  nlohmann::ordered_json named = config.raw();
  ConfigNames used;  // a key that is only there under our name keeps it
  for (const auto& [theirs, ours] : names) {
    const bool has_theirs = config.raw().contains(theirs);
    if (has_theirs) named[ours] = config.raw().at(theirs);
    if (has_theirs || !config.raw().contains(ours)) used.push_back({theirs, ours});
  }
  try {
    return read(Json::parse(named.dump(), config.where()));
  } catch (const Error& error) {
    throw Error({.kind = error.kind(),
                 .wanted = with_theirs(error.wanted(), used),
                 .got = with_theirs(error.got(), used),
                 .next = with_theirs(error.next(), used)});
  }
}

}  // namespace hotswap
