#include "hotswap/hub/sign/trust_root.h"

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/sign/sigstore_root.h"

namespace hotswap {
namespace {

std::string root_bytes(const Json& json, const char* key) {
  const auto text = json.at<std::string>(key);
  if (auto bytes = from_base64(text)) return *bytes;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("base64 at ", json.child(key).where()),
               .got = "'" + shown(text) + "'",
               .next = "fetch the trust root file again"});
}

ValidFor read_valid(const Json& json) {
  ValidFor valid;
  const auto found = json.find("validFor");
  if (!found) return valid;
  const auto time_at = [&](const char* key, int64_t& target) {
    if (!found->has(key)) return;
    const auto time = parse_time(found->at<std::string>(key));
    if (!time) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("a time as 2022-04-13T20:06:15Z at ", found->child(key).where()),
                   .got = "'" + shown(found->at<std::string>(key)) + "'",
                   .next = "correct the trust root"});
    }
    target = *time;
  };
  time_at("start", valid.start);
  time_at("end", valid.end);
  return valid;
}

std::vector<LogKey> read_logs(const Json& root, const char* name) {
  std::vector<LogKey> keys;
  const auto list = root.find(name);
  if (!list) return keys;
  for (const Json& log : list->elements()) {
    const Json key = log.child("publicKey");
    const std::string der = root_bytes(key, "rawBytes");
    const auto id = log.find("logId");
    keys.push_back({.id = id ? root_bytes(*id, "keyId") : sha256_of(der),
                    .key = key_from_der(der, key.where()),
                    .valid = read_valid(key)});
  }
  return keys;
}

std::vector<Authority> read_authorities(const Json& root, const char* name) {
  std::vector<Authority> authorities;
  const auto list = root.find(name);
  if (!list) return authorities;
  for (const Json& json : list->elements()) {
    Authority authority{.chain = {}, .valid = read_valid(json)};
    for (const Json& certificate : json.child("certChain").child("certificates").elements()) {
      authority.chain.push_back(certificate_from_der(root_bytes(certificate, "rawBytes"), certificate.where()));
    }
    if (authority.chain.empty()) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("certificates at ", json.where()),
                   .got = "none",
                   .next = "correct the trust root"});
    }
    authorities.push_back(std::move(authority));
  }
  return authorities;
}

}  // namespace

TrustRoot TrustRoot::parse(std::string_view text, const std::string& where) {
  const Json json = Json::parse(text, where);
  const auto type = json.at<std::string>("mediaType");
  if (!type.starts_with("application/vnd.dev.sigstore.trustedroot")) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a Sigstore trust root in " + where,
                 .got = "'" + shown(type) + "'",
                 .next = "give the trusted_root.json that Sigstore publishes"});
  }
  TrustRoot root{.logs = read_logs(json, "tlogs"),
                 .certificate_logs = read_logs(json, "ctlogs"),
                 .authorities = read_authorities(json, "certificateAuthorities"),
                 .clocks = read_authorities(json, "timestampAuthorities")};
  if (root.logs.empty() || root.authorities.empty()) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "at least one of tlogs and one of certificateAuthorities in " + where,
                 .got = cat(root.logs.size(), " and ", root.authorities.size()),
                 .next = "correct the trust root"});
  }
  return root;
}

TrustRoot TrustRoot::read(const std::filesystem::path& file) { return parse(read_file(file), file.string()); }

TrustRoot TrustRoot::current() {
  if (const auto file = env(EnvVar::kTrustRoot)) return read(*file);
  return parse(kSigstoreRoot, "the built-in trust root");
}

const LogKey* TrustRoot::find(const std::vector<LogKey>& keys, std::string_view id) {
  for (const LogKey& key : keys) {
    if (key.id == id) return &key;
  }
  return nullptr;
}

}  // namespace hotswap
