#include "hotswap/models/gguf_choice.h"

#include <algorithm>
#include <regex>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

const std::regex& part_ending() {
  static const std::regex ending(R"(-(\d{5})-of-(\d{5})\.gguf$)", std::regex::optimize);
  return ending;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// Models that a tag can select: no projectors of images, no later part of a set.
bool is_choice(const std::string& file) {
  const std::string name = file.substr(file.rfind('/') + 1);
  if (!name.ends_with(".gguf") || name.starts_with("mmproj")) return false;
  std::smatch part;
  return !std::regex_search(name, part, part_ending()) || part[1] == "00001";
}

bool has_tag(const std::string& file, const std::string& tag) {
  std::string stem = lower_case(std::regex_replace(file, part_ending(), ".gguf"));
  stem.resize(stem.size() - std::string_view(".gguf").size());
  const std::string end = lower_case(tag);
  if (!stem.ends_with(end)) return false;
  return stem.size() == end.size() ||
         std::string_view("-._/").find(stem[stem.size() - end.size() - 1]) != std::string::npos;
}

}  // namespace

std::optional<TaggedName> tagged_name(const std::string& name) {
  const size_t colon = name.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == name.size()) return std::nullopt;
  if (name.find('/', colon) != std::string::npos) return std::nullopt;
  return TaggedName{name.substr(0, colon), name.substr(colon + 1)};
}

std::string gguf_of_tag(const std::vector<std::string>& files, const std::string& tag, const std::string& where) {
  std::vector<std::string> choices, fitting;
  std::copy_if(files.begin(), files.end(), std::back_inserter(choices), is_choice);
  std::sort(choices.begin(), choices.end());
  std::copy_if(choices.begin(), choices.end(), std::back_inserter(fitting),
               [&](const std::string& file) { return has_tag(file, tag); });
  if (fitting.size() == 1) return fitting.front();
  if (fitting.size() > 1) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("one GGUF file of ", where, " whose name ends in ", tag),
                 .got = join(fitting),
                 .next = "name one as gguf_file (--gguf-file), without the tag"});
  }
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("a GGUF file of ", where, " whose name ends in ", tag),
               .got = choices.empty() ? "no GGUF file" : join(choices),
               .next = "give the end of one of those names as the tag, or the file as gguf_file (--gguf-file)"});
}

std::string with_all_parts(const std::string& gguf_file) {
  return std::regex_replace(gguf_file, part_ending(), "-*-of-$2.gguf");
}

}  // namespace hotswap
