// What a request to serve-hub says: the parts of its address, its query, the bytes and the files that it asks for. All
// of it is hostile; what makes no sense is Refused.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/hub/names/repo.h"

namespace hotswap {

// A refusal in the Hub's form.
struct Refused {
  int status;
  const char* code;  // of the header X-Error-Code; "": none
  std::string message;
};

using Query = std::multimap<std::string, std::string>;

struct Target {
  std::vector<std::string> parts;  // of the path, decoded each for itself: "%2F" in a revision stays inside it
  Query query;
  std::string value(const std::string& key) const;  // empty: not given
  bool flag(const std::string& key) const;          // true, True or 1
  std::string joined(size_t from) const;            // the parts from there on
};

Target parse_target(std::string_view text);
Query parse_query(std::string_view text);                     // a=1&b=2, as addresses and forms have it
std::optional<RepoType> type_named(const std::string& name);  // "models"

struct ByteRange {
  int64_t first = 0, last = -1;  // last < first: nothing
  bool partial = false;
};

// One range is honoured; several, or what is no range, mean the whole file, as the standard allows.
ByteRange range_of(const std::string& header, int64_t size);

// Whether a list of ETags, as If-None-Match has it, names this one.
bool names_etag(std::string_view list, const std::string& etag);

// The paths of a question about files: {"paths": [...]} or "paths": "...", or the same as a form.
std::vector<std::string> asked_paths(const std::string& body, std::string_view content_type);

}  // namespace hotswap
