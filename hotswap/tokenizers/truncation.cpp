#include "hotswap/tokenizers/truncation.h"

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap::tokenizers {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 27;  // tokens

int64_t length_of(const Encoding& encoding) { return static_cast<int64_t>(encoding.ids.size()); }

Encoding part_of(const Encoding& whole, int64_t begin, int64_t end) {
  const auto slice = [&](const auto& from, auto& to) {
    if (!from.empty()) to.assign(from.begin() + begin, from.begin() + end);
  };
  Encoding part;
  part.ids_only = whole.ids_only;
  slice(whole.ids, part.ids);
  slice(whole.type_ids, part.type_ids);
  slice(whole.tokens, part.tokens);
  slice(whole.offsets, part.offsets);
  return part;
}

void cut(Encoding& text, int64_t length, const Truncation& truncation) {
  const int64_t size = length_of(text);
  if (length >= size) return;
  Encoding kept;
  kept.ids_only = text.ids_only;
  if (length == 0) {
    if (truncation.keep_overflowing) kept.overflowing.push_back(std::move(text));
    text = std::move(kept);
    return;
  }
  if (truncation.stride < 0 || truncation.stride >= length) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a stride below the ", length, " tokens that a text is cut to"),
                 .got = cat(truncation.stride),
                 .next = "use a smaller stride or a larger max_length"});
  }
  const bool right = truncation.side == Side::kRight;
  for (int64_t done = 0; done < size; done += length - truncation.stride) {  // from the side that stays
    const int64_t end = std::min(done + length, size);
    Encoding part = right ? part_of(text, done, end) : part_of(text, size - end, size - done);
    if (done == 0) {
      kept = std::move(part);
    } else {
      kept.overflowing.push_back(std::move(part));
    }
    if (end == size || !truncation.keep_overflowing) break;
  }
  text = std::move(kept);
}

// The lengths of two texts of which only as much as necessary is cut from the longer one.
std::pair<int64_t, int64_t> longest_first(int64_t first, int64_t second, int64_t max_length) {
  const bool swapped = first > second;
  int64_t shorter = std::min(first, second);
  int64_t longer = shorter > max_length ? shorter : std::max(shorter, max_length - shorter);
  if (shorter + longer > max_length) {
    shorter = max_length / 2;
    longer = shorter + max_length % 2;
  }
  return swapped ? std::pair(longer, shorter) : std::pair(shorter, longer);
}

void fill(Encoding& encoding, int64_t length, const Padding& padding) {
  for (Encoding& part : encoding.overflowing) fill(part, length, padding);
  encoding.attention_mask.assign(encoding.ids.size(), 1);
  const auto missing = static_cast<size_t>(std::max<int64_t>(length - length_of(encoding), 0));
  const auto extend = [&](auto& list, const auto& value) {
    list.insert(padding.side == Side::kLeft ? list.begin() : list.end(), missing, value);
  };
  extend(encoding.ids, padding.id);
  extend(encoding.type_ids, padding.type_id);
  extend(encoding.attention_mask, int64_t{0});
  if (encoding.ids_only) return;
  extend(encoding.tokens, padding.token);
  extend(encoding.offsets, std::pair<int64_t, int64_t>(0, 0));
}

Side read_side(const Json& json, const char* key) {
  const auto name = json.get<std::string>(key, "Right");
  if (name == "Left") return Side::kLeft;
  if (name == "Right") return Side::kRight;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("Left or Right at ", json.where(), ".", key),
               .got = cat("'", name, "'"),
               .next = "choose Left or Right"});
}

}  // namespace

void truncate(std::span<Encoding> texts, const Truncation& truncation, int64_t added_tokens) {
  const int64_t max_length = truncation.max_length - added_tokens;
  if (max_length < 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a max_length of ", added_tokens, " or more, the count of special tokens"),
                 .got = cat(truncation.max_length),
                 .next = "use a larger max_length, or add no special tokens"});
  }
  int64_t total = 0;
  for (const Encoding& text : texts) total += length_of(text);
  if (max_length == 0) {
    for (Encoding& text : texts) cut(text, 0, truncation);
    return;
  }
  if (total <= max_length) return;
  if (truncation.strategy == Truncation::Strategy::kLongestFirst) {
    if (texts.size() == 1) return cut(texts[0], max_length, truncation);
    const auto [first, second] = longest_first(length_of(texts[0]), length_of(texts[1]), max_length);
    cut(texts[0], first, truncation);
    return cut(texts[1], second, truncation);
  }
  const size_t which = truncation.strategy == Truncation::Strategy::kOnlyFirst ? 0 : 1;
  if (which >= texts.size()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a second text to truncate, as the strategy only_second has it",
                 .got = "one text",
                 .next = "use another strategy"});
  }
  const int64_t length = length_of(texts[which]) - (total - max_length);
  if (length <= 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a text of more than ", total - max_length, " tokens, which have to be cut from it"),
                 .got = cat(length_of(texts[which])),
                 .next = "use the strategy longest_first or a larger max_length"});
  }
  cut(texts[which], length, truncation);
}

void pad(std::span<Encoding> batch, const Padding& padding) {
  int64_t length = padding.length.value_or(0);
  if (!padding.length) {
    for (const Encoding& encoding : batch) length = std::max(length, length_of(encoding));
  }
  if (padding.multiple_of > 0) length = (length + padding.multiple_of - 1) / padding.multiple_of * padding.multiple_of;
  if (length < 0 || length > kMaxLength || padding.multiple_of < 0 || padding.multiple_of > kMaxLength) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("padding to 0 to ", kMaxLength, " tokens"),
                 .got = cat("length ", length, ", multiple_of ", padding.multiple_of),
                 .next = "use a smaller length"});
  }
  for (Encoding& encoding : batch) fill(encoding, length, padding);
}

Truncation read_truncation(const Json& json) {
  json.only({"direction", "max_length", "strategy", "stride"});
  Truncation out;
  out.max_length = json.at<int64_t>("max_length");
  out.stride = json.at<int64_t>("stride");
  out.side = read_side(json, "direction");
  const auto strategy = json.at<std::string>("strategy");
  constexpr std::pair<std::string_view, Truncation::Strategy> kNames[] = {
      {"LongestFirst", Truncation::Strategy::kLongestFirst},
      {"OnlyFirst", Truncation::Strategy::kOnlyFirst},
      {"OnlySecond", Truncation::Strategy::kOnlySecond}};
  for (const auto& [name, value] : kNames) {
    if (strategy != name) continue;
    out.strategy = value;
    return out;
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("LongestFirst, OnlyFirst or OnlySecond at ", json.where(), ".strategy"),
               .got = cat("'", strategy, "'"),
               .next = "choose one of these"});
}

Padding read_padding(const Json& json) {
  json.only({"strategy", "direction", "pad_to_multiple_of", "pad_id", "pad_type_id", "pad_token"});
  Padding out;
  const Json strategy = json.child("strategy");  // "BatchLongest" or {"Fixed": 128}
  if (strategy.is_object()) {
    strategy.only({"Fixed"});
    out.length = strategy.at<int64_t>("Fixed");
  } else if (const auto name = strategy.as<std::string>(); name != "BatchLongest") {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("BatchLongest or {\"Fixed\": length} at ", strategy.where()),
                 .got = cat("'", name, "'"),
                 .next = "choose one of these"});
  }
  out.side = read_side(json, "direction");
  out.multiple_of = json.get<int64_t>("pad_to_multiple_of", 0);
  out.id = json.at<int64_t>("pad_id");
  out.type_id = json.at<int64_t>("pad_type_id");
  out.token = json.at<std::string>("pad_token");
  return out;
}

}  // namespace hotswap::tokenizers
