// Sigstore bundles: metadata.json.sigstore beside metadata.json says who built a variant, without a key that anybody
// keeps. Verified with OpenSSL, against a trust root that is a file (trust_root.h) and policies that name the signers.
//
//   const VariantVerdict verdict = verify_variant(folder, TrustRoot::current(), default_signers());
//   if (verdict.outcome != SignatureOutcome::kSuccess) ... verdict.reason
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/hub/package/files_in_memory.h"
#include "hotswap/hub/sign/trust_root.h"

namespace hotswap {

// Who may sign. Every field that is given must fit the certificate; of `builders` and `identities` one.
struct Signer {
  std::string name;                     // for messages
  std::string issuer;                   // who vouched for the identity; needed
  std::string repository;               // source repository's URI
  std::vector<std::string> builders;    // build signer's URIs: workflow@ref
  std::vector<std::string> identities;  // subject alternative names: URIs, e-mail addresses
};
std::vector<Signer> default_signers();  // kernels-community's workflows
// An array of tables: name, issuer, repository, builders, identities. Error where a signer is not bound to anything.
std::vector<Signer> parse_signers(const Json& json);

struct SignedBy {
  std::string signer, issuer, repository, builder;  // signer: the policy's name
  std::vector<std::string> identities;
  int64_t time = 0;  // of the signature, seconds since 1970, by the log or a clock
};

// Throws an Error that says which step failed: the bundle's form, the signature's time, the certificate's chain, its
// certificate log, its usage, the policy, the log's proof, the signature, or what the log holds.
SignedBy verify_bundle(std::string_view artifact, std::string_view bundle, const TrustRoot& root,
                       const std::vector<Signer>& signers);

enum class SignatureOutcome {
  kSuccess,
  kBundleMissing,
  kBundleInvalid,
  kMetadataMissing,
  kSignatureFailure,
  kMetadataInvalid,
  kDigestMissing,
  kDigestFailure,
};
const char* outcome_name(SignatureOutcome outcome);  // "SignatureBundleMissing", as Python's kernels has them

struct VariantVerdict {
  SignatureOutcome outcome = SignatureOutcome::kSuccess;
  std::string reason;  // empty: success
  SignedBy by;         // of a good signature
};
// In this order: the bundle is there and parses, metadata.json is there, the signature holds; only then is the JSON
// parsed, its digest found and the files compared with it.
VariantVerdict verify_variant(const std::filesystem::path& folder, const TrustRoot& root,
                              const std::vector<Signer>& signers, const FilesInMemory& files = {});

// The same of a variant that nobody has signed: metadata.json, its digest, the files.
VariantVerdict verify_files(const std::filesystem::path& folder, const FilesInMemory& files = {});

}  // namespace hotswap
