// A Sigstore trust root (trusted_root.json): whose certificates, logs and clocks are believed. The one of Sigstore's
// public instance is built in; HOTSWAP_TRUST_ROOT or `--trust-root FILE` puts another in its place.
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/hub/sign/crypto.h"

namespace hotswap {

struct ValidFor {  // seconds since 1970, both ends included
  int64_t start = std::numeric_limits<int64_t>::min(), end = std::numeric_limits<int64_t>::max();
  bool holds(int64_t time) const { return start <= time && time <= end; }
};

struct LogKey {
  std::string id;  // raw bytes: the sha256 of the key, or what the root gives
  Key key;
  ValidFor valid;
};

struct Authority {                 // issues certificates, or timestamps
  std::vector<Certificate> chain;  // the root last
  ValidFor valid;
};

struct TrustRoot {
  std::vector<LogKey> logs;              // transparency logs (Rekor)
  std::vector<LogKey> certificate_logs;  // of certificate transparency; none: certificates need no timestamp of one
  std::vector<Authority> authorities;    // Fulcio
  std::vector<Authority> clocks;         // timestamp authorities (RFC 3161)

  static TrustRoot parse(std::string_view text, const std::string& where);
  static TrustRoot read(const std::filesystem::path& file);
  static TrustRoot current();  // HOTSWAP_TRUST_ROOT's, else Sigstore's public one

  static const LogKey* find(const std::vector<LogKey>& keys, std::string_view id);
};

}  // namespace hotswap
