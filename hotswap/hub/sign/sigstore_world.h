// For tests: a Sigstore of one's own. Makes a root, an intermediate, a certificate log, a transparency log and, with
// them, bundles that are right in everything but what a test asks for.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hotswap/hub/sign/crypto.h"

namespace hotswap::test_support {

constexpr int64_t kSignedAt = 1'700'000'000;  // 2023-11-14T22:13:20Z

struct Wish {                                                  // of a bundle; the defaults are a good one
  std::string artifact = "hello world", logged_artifact = {};  // logged: what the log's entry is about, if another
  std::string issuer = "https://issuer.test", issuer_v1 = {};  // issuer_v1: the older extension, if another
  std::string repository = "https://git.test/org/kernels";
  std::string builder = "https://git.test/org/kernels/build.yaml@refs/heads/main";
  std::string extended_usage = "codeSigning", usage = "critical,digitalSignature", basic = "critical,CA:FALSE";
  int64_t valid_for = 600, signed_at = kSignedAt;
  bool certificate_timestamp = true, foreign_certificate_log = false, foreign_key = false;
  int version = 3, entry_version = 1;  // of the bundle; of the log's entry
  int64_t leaf = 5, tree = 13;
};

class SigstoreWorld {
 public:
  SigstoreWorld();
  nlohmann::ordered_json root() const;  // trusted_root.json
  nlohmann::ordered_json bundle(const Wish& wish = {}) const;
  std::string checkpoint(const std::string& root_hash, int64_t size, EVP_PKEY* by = nullptr) const;

 private:
  Certificate leaf(const Wish& wish, EVP_PKEY* key) const;
  void add_certificate_timestamp(X509* leaf, bool foreign) const;
  Key root_key_, issuer_key_, ct_key_, log_key_;
  Certificate root_, issuer_;
};

}  // namespace hotswap::test_support
