#include "hotswap/hub/sign/bundle.h"

#include <set>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

constexpr size_t kMaxBytes = 4 << 20, kMaxTimestamps = 32;

[[noreturn]] void refuse(const std::string& wanted, const std::string& where, const std::string& got) {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(wanted, " in ", where),
               .got = got,
               .next = "sign again, or download the file again"});
}

std::string bytes_at(const Json& json, const char* key) {
  const auto text = json.at<std::string>(key);
  if (auto bytes = from_base64(text)) return *bytes;
  refuse("base64", json.child(key).where(), "'" + shown(text) + "'");
}

// 0.1, 0.2 or 0.3 out of "application/vnd.dev.sigstore.bundle+json;version=0.2" or "...bundle.v0.3+json".
int version_of(const std::string& type, const std::string& where) {
  const std::string old = "application/vnd.dev.sigstore.bundle+json;version=0.";
  for (int version = 1; version <= 3; ++version) {
    if (type == cat(old, version)) return version;
  }
  if (type == "application/vnd.dev.sigstore.bundle.v0.3+json") return 3;
  refuse("a Sigstore bundle of version 0.1, 0.2 or 0.3", where, "'" + shown(type) + "'");
}

}  // namespace

Bundle Bundle::parse(std::string_view text, const std::string& where) {
  if (text.size() > kMaxBytes) refuse("a bundle of at most 4 MB", where, cat(text.size(), " bytes"));
  const Json json = Json::parse(text, where);
  const int version = version_of(json.at<std::string>("mediaType"), where);
  const Json material = json.child("verificationMaterial");
  Bundle bundle;
  if (version == 3) {
    bundle.certificate = certificate_from_der(bytes_at(material.child("certificate"), "rawBytes"), where);
  } else {
    // The first is the signer's; the rest are not trusted for standing here.
    const auto chain = material.child("x509CertificateChain").child("certificates").elements();
    if (chain.empty()) refuse("a certificate", where, "none");
    bundle.certificate = certificate_from_der(bytes_at(chain.front(), "rawBytes"), where);
  }
  const auto entries = material.child("tlogEntries").elements();
  if (entries.size() != 1) refuse("one log entry", where, cat(entries.size()));
  bundle.entry = LogEntry::parse(entries.front());
  if (const auto data = material.find("timestampVerificationData")) {
    const auto list = data->find("rfc3161Timestamps");
    std::set<std::string> seen;
    for (const Json& token : list ? list->elements() : std::vector<Json>()) {
      bundle.timestamps.push_back(bytes_at(token, "signedTimestamp"));
      if (!seen.insert(bundle.timestamps.back()).second || seen.size() > kMaxTimestamps) {
        refuse(cat("at most ", kMaxTimestamps, " timestamps, each once,"), where, "one twice, or more");
      }
    }
  }
  if (version == 1 && bundle.entry.promise.empty()) refuse("the log's promise", where, "none");
  if (version > 1 && bundle.entry.checkpoint.empty()) refuse("a checkpoint in the inclusion proof", where, "none");
  if (bundle.entry.promise.empty() && bundle.timestamps.empty()) refuse("a signed time", where, "none");

  const Json signature = json.child("messageSignature");
  bundle.signature = bytes_at(signature, "signature");
  if (const auto digest = signature.find("messageDigest")) {
    const auto algorithm = digest->at<std::string>("algorithm");
    if (algorithm != "SHA2_256") refuse("the digest SHA2_256", where, "'" + shown(algorithm) + "'");
    bundle.digest = bytes_at(*digest, "digest");
  }
  return bundle;
}

}  // namespace hotswap
