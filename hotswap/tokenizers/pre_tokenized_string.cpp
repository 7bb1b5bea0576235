#include "hotswap/tokenizers/pre_tokenized_string.h"

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

constexpr size_t kMaxInputBytes = size_t{1} << 27;  // bytes of a text, before and after it is normalized

void check_size(size_t size) {
  if (size <= kMaxInputBytes) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("a text of at most ", kMaxInputBytes, " bytes, also when normalized"),
               .got = cat(size, " bytes"),
               .next = "encode it in parts"});
}

}  // namespace

void NormalizedString::replace_found(const std::vector<Stretch>& stretches, std::string_view content) {
  std::string new_bytes;
  std::vector<Span> new_origin;
  size_t size = 0;
  for (const Stretch& stretch : stretches) size += stretch.found ? content.size() : stretch.end - stretch.begin;
  check_size(size);
  new_bytes.reserve(size);
  new_origin.reserve(size);
  for (const Stretch& stretch : stretches) {
    if (stretch.found) {
      new_bytes += content;
      // What is put in belongs to the last character that it replaces or follows.
      const Span from = stretch.end > 0 ? origin[stretch.end - 1] : Span{origin[0].begin, origin[0].begin};
      new_origin.insert(new_origin.end(), content.size(), from);
    } else {
      new_bytes.append(bytes, stretch.begin, stretch.end - stretch.begin);
      new_origin.insert(new_origin.end(), origin.begin() + stretch.begin, origin.begin() + stretch.end);
    }
  }
  bytes = std::move(new_bytes);
  origin = std::move(new_origin);
}

void NormalizedString::prepend(std::string_view content) {
  if (bytes.empty()) return;
  check_size(bytes.size() + content.size());
  bytes.insert(0, content);
  const Span first = origin[0];
  origin.insert(origin.begin(), content.size(), first);
}

void NormalizedString::rewrite(const std::vector<NewPoint>& points) {
  std::string new_bytes;
  std::vector<Span> new_origin;
  new_bytes.reserve(bytes.size());
  new_origin.reserve(origin.size());
  size_t at = 0;  // in the old bytes
  for (const NewPoint& point : points) {
    Span from{};
    if (point.change > 0) {
      from = at > 0 ? origin[at - 1] : Span{origin[0].begin, origin[0].begin};
    } else {
      from = origin[at];
      for (int gone = point.change; gone <= 0 && at < bytes.size(); ++gone) at += code_point_at(bytes, at).size;
    }
    append_utf8(new_bytes, point.value);
    new_origin.resize(new_bytes.size(), from);
  }
  bytes = std::move(new_bytes);
  origin = std::move(new_origin);
}

void NormalizedString::keep(size_t begin, size_t end) {
  bytes = bytes.substr(begin, end - begin);
  origin = std::vector<Span>(origin.begin() + static_cast<std::ptrdiff_t>(begin),
                             origin.begin() + static_cast<std::ptrdiff_t>(end));
}

PreTokenizedString::PreTokenizedString(std::string_view input) : text_(input) {
  check_size(input.size());
  if (!input.empty()) pieces_.push_back({0, static_cast<uint32_t>(input.size())});
}

// As long as the text is the input, a byte comes from the character around it.
Span PreTokenizedString::origin_of(uint32_t at) const {
  if (!origin_.empty()) return origin_[at];
  uint32_t begin = at;
  uint32_t end = at + 1;
  while (begin > 0 && is_continuation(text_[begin])) --begin;
  while (end < text_.size() && is_continuation(text_[end])) ++end;
  return {begin, end};
}

Span PreTokenizedString::origin(uint32_t begin, uint32_t end) const {
  return {origin_of(begin).begin, origin_of(end - 1).end};
}

void PreTokenizedString::cut(const std::function<void(const Piece&, std::vector<Piece>& out)>& cut) {
  std::vector<Piece> cuts;
  cuts.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    if (piece.id >= 0) {
      cuts.push_back(piece);
      continue;
    }
    const size_t before = cuts.size();
    cut(piece, cuts);
    size_t kept = before;
    for (size_t i = before; i < cuts.size(); ++i) {
      if (cuts[i].begin != cuts[i].end) cuts[kept++] = cuts[i];
    }
    cuts.resize(kept);
  }
  pieces_ = std::move(cuts);
}

void PreTokenizedString::rewrite(const std::function<void(NormalizedString&)>& change) {
  std::string text;
  std::vector<Span> origin;
  std::vector<Piece> pieces;
  NormalizedString part;
  for (const Piece& piece : pieces_) {
    const auto begin = static_cast<uint32_t>(text.size());
    part.bytes.assign(view(piece));
    part.origin.clear();
    if (origin_.empty()) {
      for (uint32_t i = piece.begin; i < piece.end;) {
        const uint32_t size = code_point_at(text_, i).size;
        part.origin.insert(part.origin.end(), size, Span{i, i + size});
        i += size;
      }
    } else {
      part.origin.assign(origin_.begin() + piece.begin, origin_.begin() + piece.end);
    }
    if (piece.id < 0) change(part);
    if (part.bytes.empty()) continue;
    text += part.bytes;
    origin.insert(origin.end(), part.origin.begin(), part.origin.end());
    check_size(text.size());
    pieces.push_back({begin, static_cast<uint32_t>(text.size()), piece.id});
  }
  owned_ = std::move(text);
  text_ = owned_;
  origin_ = std::move(origin);
  pieces_ = std::move(pieces);
}

}  // namespace hotswap::tokenizers
