// A Sigstore bundle's parts: versions 0.1 to 0.3 of its JSON, with a signature of a file (not an attestation).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hotswap/hub/sign/transparency.h"

namespace hotswap {

struct Bundle {
  Certificate certificate;  // the signer's
  LogEntry entry;
  std::vector<std::string> timestamps;  // RFC 3161, DER
  std::string signature, digest;        // raw; digest: of the file, empty where the bundle has none

  // Error where something is missing that its version must have.
  static Bundle parse(std::string_view text, const std::string& where);
};

}  // namespace hotswap
