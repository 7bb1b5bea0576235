#include "hotswap/hub/sign/signature.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/sha256.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/sign/bundle.h"

namespace hotswap {
namespace {

[[noreturn]] void refuse_signature(const std::string& wanted, const std::string& got) {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = wanted,
               .got = got,
               .next = "do not use what it signs; download it again"});
}

// The verified times of the signature: by the log, by clocks.
std::vector<int64_t> times_of(const Bundle& bundle, const LogKey& log, const TrustRoot& root) {
  std::vector<int64_t> times;
  const LogEntry& entry = bundle.entry;
  if (!entry.promise.empty() && entry.integrated_time != 0) {
    // Only this kind of entry has a time that the promise signs.
    if (entry.version != "0.0.1") refuse_signature("a log entry of version 0.0.1 with its time", entry.version);
    verify_promise(entry, log);
    times.push_back(entry.integrated_time);
  }
  for (const std::string& token : bundle.timestamps) {
    if (const auto time = verify_clock(token, bundle.signature, root.clocks)) times.push_back(*time);
  }
  if (times.empty()) refuse_signature("a time of the signature that the log or a clock has signed", "none");
  return times;
}

std::vector<Certificate> chain_of(const Bundle& bundle, const TrustRoot& root, int64_t time) {
  std::string why = "no authority of the trust root was valid then";
  for (const Authority& authority : root.authorities) {
    if (!authority.valid.holds(time)) continue;
    std::vector<X509*> intermediates;
    for (size_t i = 0; i + 1 < authority.chain.size(); ++i) intermediates.push_back(authority.chain[i].get());
    try {
      return verify_chain(bundle.certificate.get(), intermediates, {authority.chain.back().get()}, time);
    } catch (const Error& error) {  // another authority may have issued it
      why = error.got();
    }
  }
  refuse_signature("a certificate that chains to the trust root, valid when it signed", why);
}

void check_usage(X509* leaf) {
  if (X509_check_ca(leaf) != 0) refuse_signature("a certificate for signing", "one for issuing certificates");
  if ((X509_get_extension_flags(leaf) & EXFLAG_KUSAGE) == 0 || (X509_get_key_usage(leaf) & KU_DIGITAL_SIGNATURE) == 0) {
    refuse_signature("a certificate for digital signatures", "one for another use");
  }
  if ((X509_get_extension_flags(leaf) & EXFLAG_XKUSAGE) == 0 ||
      (X509_get_extended_key_usage(leaf) & XKU_CODE_SIGN) == 0) {
    refuse_signature("a certificate for code signing", "one for another use");
  }
}

SignedBy identity_of(const X509* leaf) {
  const auto text = [&](const char* oid) {
    const auto der = extension(leaf, oid);
    return der ? utf8_string(*der).value_or("") : std::string();
  };
  SignedBy by{.signer = {},
              .issuer = text("1.3.6.1.4.1.57264.1.8"),
              .repository = text("1.3.6.1.4.1.57264.1.12"),
              .builder = text("1.3.6.1.4.1.57264.1.9"),
              .identities = subject_names(leaf),
              .time = 0};
  // The issuer stands there twice, once as raw bytes; where both do they must agree.
  const auto first = extension(leaf, "1.3.6.1.4.1.57264.1.1");
  if (first && by.issuer.empty()) by.issuer = *first;
  if (first && *first != by.issuer)
    refuse_signature("one issuer in the certificate", cat(shown(*first), " and ", shown(by.issuer)));
  return by;
}

// Why this signer is not the one; empty: it is.
std::string mismatch(const Signer& signer, const SignedBy& by) {
  if (signer.issuer != by.issuer) return cat("issuer '", shown(by.issuer), "' is not ", signer.issuer);
  if (!signer.repository.empty() && signer.repository != by.repository) {
    return cat("repository '", shown(by.repository), "' is not ", signer.repository);
  }
  const auto& builders = signer.builders;
  if (!builders.empty() && std::find(builders.begin(), builders.end(), by.builder) == builders.end()) {
    return cat("builder '", shown(by.builder), "' is none of ", join(builders));
  }
  const auto listed = [&](const std::string& name) {
    return std::find(signer.identities.begin(), signer.identities.end(), name) != signer.identities.end();
  };
  if (!signer.identities.empty() && std::none_of(by.identities.begin(), by.identities.end(), listed)) {
    return cat("identity '", shown(join(by.identities)), "' is none of ", join(signer.identities));
  }
  return "";
}

std::string signer_of(const std::vector<Signer>& signers, const SignedBy& by) {
  std::vector<std::string> why;
  for (const Signer& signer : signers) {
    const std::string text = mismatch(signer, by);
    if (text.empty()) return signer.name;
    why.push_back(cat(signer.name, ": ", text));
  }
  refuse_signature("a signer that the policy names", why.empty() ? "a policy that names none" : join(why, "; "));
}

void check_body_v1(const Bundle& bundle, const Json& spec, const std::string& digest_hex) {
  const Json hash = spec.child("data").child("hash");
  const Json signature = spec.child("signature");
  const auto pem = from_base64(signature.child("publicKey").at<std::string>("content"));
  const std::unique_ptr<BIO, FreeWith<BIO_free>> bio(
      BIO_new_mem_buf(pem ? pem->data() : "", pem ? static_cast<int>(pem->size()) : 0));
  const Certificate logged(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (!logged) refuse_signature("the certificate in the log's entry", openssl_error());
  if (hash.at<std::string>("algorithm") != "sha256" || hash.at<std::string>("value") != digest_hex ||
      from_base64(signature.at<std::string>("content")) != bundle.signature ||
      der_of(logged.get()) != der_of(bundle.certificate.get())) {
    refuse_signature("a log entry of this file, signature and certificate", "one of others");
  }
}

void check_body_v2(const Bundle& bundle, const Json& spec, const std::string& digest) {
  const Json record = spec.child("hashedRekordV002");
  const Json data = record.child("data"), signature = record.child("signature");
  const Json certificate = signature.child("verifier").child("x509Certificate");
  if (data.at<std::string>("algorithm") != "SHA2_256" || from_base64(data.at<std::string>("digest")) != digest ||
      from_base64(signature.at<std::string>("content")) != bundle.signature ||
      from_base64(certificate.at<std::string>("rawBytes")) != der_of(bundle.certificate.get())) {
    refuse_signature("a log entry of this file, signature and certificate", "one of others");
  }
}

// What was logged is what is here: else a good entry of one thing would vouch for another (CVE-2022-36056).
void check_body(const Bundle& bundle, const std::string& digest) {
  const LogEntry& entry = bundle.entry;
  const Json body = Json::parse(entry.body, "the log's entry");
  if (entry.kind != "hashedrekord" || body.at<std::string>("kind") != entry.kind ||
      body.at<std::string>("apiVersion") != entry.version) {
    refuse_signature("a log entry of the kind hashedrekord", cat(shown(entry.kind), " ", shown(entry.version)));
  }
  if (entry.version == "0.0.1") {
    check_body_v1(bundle, body.child("spec"), to_hex({reinterpret_cast<const uint8_t*>(digest.data()), digest.size()}));
  } else if (entry.version == "0.0.2") {
    check_body_v2(bundle, body.child("spec"), digest);
  } else {
    refuse_signature("a log entry of version 0.0.1 or 0.0.2", shown(entry.version));
  }
}

SignedBy verify_parsed(std::string_view artifact, const Bundle& bundle, const TrustRoot& root,
                       const std::vector<Signer>& signers) {
  const LogKey* log = TrustRoot::find(root.logs, bundle.entry.log_id);
  if (log == nullptr) refuse_signature("an entry of a log that the trust root knows", "one of another log");
  const std::vector<int64_t> times = times_of(bundle, *log, root);
  for (const int64_t time : times) {
    if (!log->valid.holds(time)) refuse_signature("a log that was in use when it signed", "one that was not");
    if (time < not_before(bundle.certificate.get()) || time > not_after(bundle.certificate.get())) {
      refuse_signature("a certificate that was valid when it signed", "one that was not");
    }
    const auto chain = chain_of(bundle, root, time);
    if (!root.certificate_logs.empty()) {
      if (chain.size() < 2) refuse_signature("a certificate with an issuer", "one that stands alone");
      verify_certificate_timestamp(bundle.certificate.get(), chain[1].get(), root.certificate_logs);
    }
  }
  check_usage(bundle.certificate.get());
  SignedBy by = identity_of(bundle.certificate.get());
  by.signer = signer_of(signers, by);
  by.time = times.front();

  verify_inclusion(bundle.entry);
  if (!bundle.entry.checkpoint.empty()) verify_checkpoint(bundle.entry, *log);

  const std::string digest = sha256_of(artifact);
  if (!bundle.digest.empty() && bundle.digest != digest)
    refuse_signature("a bundle of this file", "one of another file");
  if (!verify_bytes(X509_get0_pubkey(bundle.certificate.get()), artifact, bundle.signature)) {
    refuse_signature("a signature of this file", "one of something else");
  }
  check_body(bundle, digest);
  return by;
}

}  // namespace

std::vector<Signer> default_signers() {
  const std::string repository = "https://github.com/huggingface/kernels-community";
  Signer signer{.name = "kernels-community",
                .issuer = "https://token.actions.githubusercontent.com",
                .repository = repository,
                .builders = {},
                .identities = {}};
  for (const char* workflow : {"build", "build-mac", "build-windows", "sign-old-builds"}) {
    signer.builders.push_back(cat(repository, "/.github/workflows/", workflow, ".yaml@refs/heads/main"));
  }
  return {signer};
}

std::vector<Signer> parse_signers(const Json& json) {
  std::vector<Signer> signers;
  for (const Json& entry : json.elements()) {
    entry.only({"name", "issuer", "repository", "builders", "identities"});
    Signer signer{.name = entry.at<std::string>("name"),
                  .issuer = entry.at<std::string>("issuer"),
                  .repository = entry.get<std::string>("repository", ""),
                  .builders = entry.get<std::vector<std::string>>("builders", {}),
                  .identities = entry.get<std::vector<std::string>>("identities", {})};
    // A public issuer vouches for everybody: a signer is somebody only by builder or identity.
    if (signer.issuer.empty() || (signer.builders.empty() && signer.identities.empty())) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("an issuer, and builders or identities, at ", entry.where()),
                   .got = "a signer that would be anybody",
                   .next = "name an allowed signer"});
    }
    signers.push_back(std::move(signer));
  }
  return signers;
}

SignedBy verify_bundle(std::string_view artifact, std::string_view bundle, const TrustRoot& root,
                       const std::vector<Signer>& signers) {
  return verify_parsed(artifact, Bundle::parse(bundle, "the signature"), root, signers);
}

const char* outcome_name(SignatureOutcome outcome) {
  switch (outcome) {
    case SignatureOutcome::kSuccess:
      return "Success";
    case SignatureOutcome::kBundleMissing:
      return "SignatureBundleMissing";
    case SignatureOutcome::kBundleInvalid:
      return "SignatureBundleInvalid";
    case SignatureOutcome::kMetadataMissing:
      return "MetadataMissing";
    case SignatureOutcome::kSignatureFailure:
      return "SignatureVerificationFailure";
    case SignatureOutcome::kMetadataInvalid:
      return "MetadataInvalid";
    case SignatureOutcome::kDigestMissing:
      return "DigestMissing";
    case SignatureOutcome::kDigestFailure:
      return "DigestVerificationFailure";
  }
  return "";
}

namespace {

// Runs a step; false, with the outcome and the reason, where it throws.
template <typename Work>
bool step(VariantVerdict& verdict, SignatureOutcome failure, const Work& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    verdict.outcome = failure;
    verdict.reason = error.what();
    return false;
  }
}

// The file's bytes, of those in memory or on the disk; none, with the outcome and the reason, where it has none.
std::optional<std::string> utf8_of(VariantVerdict& verdict, const std::filesystem::path& file, SignatureOutcome missing,
                                   SignatureOutcome unreadable, const FilesInMemory& files = {}) {
  if (const auto in_memory = files.find(file.filename().string()); in_memory != files.end()) {
    return std::string(in_memory->second.begin(), in_memory->second.end());
  }
  std::optional<std::string> text;
  if (std::filesystem::is_regular_file(file)) {
    step(verdict, unreadable, [&] { text = read_file(file); });
  } else {
    verdict.outcome = missing;
    verdict.reason = cat("no ", file.filename().string(), " in ", file.parent_path().string());
  }
  return text;
}

// The signature says that metadata.json is its signer's; that says what the files are.
void judge_files(VariantVerdict& verdict, const std::filesystem::path& folder, const std::string& text,
                 const FilesInMemory& files) {
  KernelMetadata metadata;
  const auto parse = [&] { metadata = parse_metadata(text, (folder / "metadata.json").string()); };
  if (!step(verdict, SignatureOutcome::kMetadataInvalid, parse)) return;
  if (!metadata.digests) {
    verdict.outcome = SignatureOutcome::kDigestMissing;
    verdict.reason = "metadata.json has no digest of the variant's files";
    return;
  }
  step(verdict, SignatureOutcome::kDigestFailure, [&] { verify_digests(folder, *metadata.digests, files); });
}

std::optional<std::string> metadata_of(VariantVerdict& verdict, const std::filesystem::path& folder,
                                       const FilesInMemory& files) {
  return utf8_of(verdict, folder / "metadata.json", SignatureOutcome::kMetadataMissing,
                 SignatureOutcome::kMetadataInvalid, files);
}

}  // namespace

VariantVerdict verify_variant(const std::filesystem::path& folder, const TrustRoot& root,
                              const std::vector<Signer>& signers, const FilesInMemory& files) {
  VariantVerdict verdict;
  const auto file = folder / "metadata.json.sigstore";
  const auto signature = utf8_of(verdict, file, SignatureOutcome::kBundleMissing, SignatureOutcome::kBundleInvalid);
  if (!signature) return verdict;
  std::optional<Bundle> bundle;
  const auto parse = [&] { bundle = Bundle::parse(*signature, file.string()); };
  if (!step(verdict, SignatureOutcome::kBundleInvalid, parse)) return verdict;
  const auto text = metadata_of(verdict, folder, files);
  if (!text) return verdict;
  const auto verify = [&] { verdict.by = verify_parsed(*text, *bundle, root, signers); };
  if (step(verdict, SignatureOutcome::kSignatureFailure, verify)) judge_files(verdict, folder, *text, files);
  return verdict;
}

VariantVerdict verify_files(const std::filesystem::path& folder, const FilesInMemory& files) {
  VariantVerdict verdict;
  if (const auto text = metadata_of(verdict, folder, files)) judge_files(verdict, folder, *text, files);
  return verdict;
}

}  // namespace hotswap
