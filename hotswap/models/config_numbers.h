// Numbers of config.json that a model cannot do without, or with any value: checked where they are read.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"

namespace hotswap {

// A size between 1 and 2^31: products of two stay within int64. Without `otherwise` the key must be there.
inline int64_t positive(const Json& config, std::string_view key, std::optional<int64_t> otherwise = {}) {
  constexpr int64_t kLargest = int64_t{1} << 31;
  const int64_t value = otherwise ? config.get<int64_t>(key, *otherwise) : config.at<int64_t>(key);
  if (value > 0 && value < kLargest) return value;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("a size between 1 and 2^31 for ", key),
               .got = cat(value, " in ", config.where()),
               .next = cat("set ", key, " to the size that the weights have")});
}

inline double positive_number(const Json& json, std::string_view key, std::optional<double> otherwise = {}) {
  const double value = otherwise ? json.get<double>(key, *otherwise) : json.at<double>(key);
  if (value > 0 && std::isfinite(value)) return value;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("a positive number for ", key),
               .got = cat(value, " in ", json.where()),
               .next = cat("set ", key, " above 0, or leave it out where the family has a default")});
}

// Where null switches something off: 0 then, and `otherwise` where the key is absent.
inline double positive_or_null(const Json& json, std::string_view key, double otherwise) {
  if (json.has(key)) return positive_number(json, key);
  return json.raw().contains(key) ? 0 : otherwise;
}

// null is off, as Python takes it; absent is `otherwise`.
inline bool flag(const Json& json, std::string_view key, bool otherwise) {
  return json.raw().contains(key) ? json.get<bool>(key, false) : otherwise;
}

// Error where a switch of the family's config is on that is not implemented.
inline void refuse_if(bool found, const Json& config, std::string_view key) {
  if (!found) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a model without ", key),
               .got = cat("it in ", config.where()),
               .next = "take another checkpoint: this is not implemented"});
}

}  // namespace hotswap
