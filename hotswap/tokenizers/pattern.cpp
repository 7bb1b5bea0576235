#include "hotswap/tokenizers/pattern.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

void cut_literal(std::string_view text, std::string_view literal, std::vector<Stretch>& out) {
  size_t done = 0;
  for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, done)) {
    if (done != at) out.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(at), false});
    done = at + literal.size();
    out.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(done), true});
  }
  if (done != text.size()) out.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(text.size()), false});
}

void cut_class(std::string_view text, Pattern::Class members, std::vector<Stretch>& out) {
  uint32_t done = 0;
  for (uint32_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (members(point.value)) {
      if (done != at) out.push_back({done, at, false});
      done = at + point.size;
      out.push_back({at, done, true});
    }
    at += point.size;
  }
  if (done != text.size()) out.push_back({done, static_cast<uint32_t>(text.size()), false});
}

}  // namespace

Pattern Pattern::read(const Json& json) {
  json.only({"String", "Regex"});
  const auto literal = json.find("String");
  const auto regex = json.find("Regex");
  if (literal.has_value() == regex.has_value()) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("either 'String' or 'Regex' at ", json.where()),
                 .got = "both or none",
                 .next = "keep one of the two"});
  }
  if (regex) return Pattern(Regex(regex->as<std::string>(), regex->where()));
  auto text = literal->as<std::string>();
  if (text.empty()) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a string to look for at ", literal->where()),
                 .got = "''",
                 .next = "write what is to be replaced or split at"});
  }
  return Pattern(std::move(text));
}

void Pattern::cut(std::string_view text, std::vector<Stretch>& out) const {
  if (const auto* literal = std::get_if<std::string>(&kind_)) return cut_literal(text, *literal, out);
  if (const auto* regex = std::get_if<Regex>(&kind_)) return regex->cut(text, out);
  cut_class(text, std::get<Class>(kind_), out);
}

bool Pattern::is_absent(std::string_view text) const {
  const auto* literal = std::get_if<std::string>(&kind_);
  return literal != nullptr && text.find(*literal) == std::string_view::npos;
}

Behavior read_behavior(const Json& json) {
  const auto name = json.as<std::string>();
  constexpr std::pair<std::string_view, Behavior> kNames[] = {{"Removed", Behavior::kRemoved},
                                                              {"Isolated", Behavior::kIsolated},
                                                              {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                              {"MergedWithNext", Behavior::kMergedWithNext},
                                                              {"Contiguous", Behavior::kContiguous}};
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous at ", json.where()),
               .got = cat("'", name, "'"),
               .next = "choose one of these"});
}

void split(const Piece& piece, const std::vector<Stretch>& stretches, Behavior behavior, std::vector<Piece>& out) {
  const size_t before = out.size();
  const auto push = [&](const Stretch& stretch) {
    out.push_back({piece.begin + stretch.begin, piece.begin + stretch.end});
  };
  const auto none_yet = [&] { return out.size() == before; };
  bool previous = false;  // whether the stretch before was found
  switch (behavior) {
    case Behavior::kIsolated:
      for (const Stretch& stretch : stretches) push(stretch);
      return;
    case Behavior::kRemoved:
      for (const Stretch& stretch : stretches) {
        if (!stretch.found) push(stretch);
      }
      return;
    case Behavior::kContiguous:
      for (const Stretch& stretch : stretches) {
        if (stretch.found == previous && !none_yet()) {
          out.back().end = piece.begin + stretch.end;
        } else {
          push(stretch);
        }
        previous = stretch.found;
      }
      return;
    case Behavior::kMergedWithPrevious:
      for (const Stretch& stretch : stretches) {
        if (stretch.found && !previous && !none_yet()) {
          out.back().end = piece.begin + stretch.end;
        } else {
          push(stretch);
        }
        previous = stretch.found;
      }
      return;
    case Behavior::kMergedWithNext:
      for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch) {
        if (stretch->found && !previous && !none_yet()) {
          out.back().begin = piece.begin + stretch->begin;
        } else {
          push(*stretch);
        }
        previous = stretch->found;
      }
      std::reverse(out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
      return;
  }
}

}  // namespace hotswap::tokenizers
