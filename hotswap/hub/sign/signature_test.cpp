// Bundles of a Sigstore of the test's own: one that is good in every form, and each way to be bad.
#include "hotswap/hub/sign/signature.h"

#include "hotswap/base/test_support.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/sign/sigstore_world.h"
#include "hotswap/hub/sign/transparency.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::SigstoreWorld;
using test_support::TempFolder;
using test_support::Wish;
using Ordered = nlohmann::ordered_json;

const SigstoreWorld& world() {
  static const SigstoreWorld one;
  return one;
}

TrustRoot root_of(const Ordered& json) { return TrustRoot::parse(json.dump(), "root.json"); }

std::vector<Signer> signers() {
  return {{.name = "ours",
           .issuer = "https://issuer.test",
           .repository = "https://git.test/org/kernels",
           .builders = {"https://git.test/org/kernels/build.yaml@refs/heads/main"},
           .identities = {}}};
}

std::string verified(const Ordered& bundle, const std::string& artifact = "hello world",
                     const Ordered& root = world().root(), const std::vector<Signer>& by = signers()) {
  return message_of([&] { verify_bundle(artifact, bundle.dump(), root_of(root), by); });
}

Ordered edited(const std::string& pointer, const Ordered& value, const Wish& wish = {}) {
  Ordered bundle = world().bundle(wish);
  Ordered& target = bundle[Ordered::json_pointer(pointer)];
  if (value.is_null()) {
    const auto at = Ordered::json_pointer(pointer);
    bundle[at.parent_pointer()].erase(at.back());
  } else {
    target = value;
  }
  return bundle;
}
constexpr const char* kEntry = "/verificationMaterial/tlogEntries/0";

TEST(Signature, GoodOnesInEveryForm) {
  const SignedBy by = verify_bundle("hello world", world().bundle().dump(), root_of(world().root()), signers());
  EXPECT_EQ(by.signer, "ours");
  EXPECT_EQ(by.time, test_support::kSignedAt);
  EXPECT_EQ(by.repository, "https://git.test/org/kernels");
  EXPECT_EQ(by.identities, signers()[0].builders);
  for (const int version : {1, 2, 3}) EXPECT_EQ(verified(world().bundle({.version = version})), "no error");
  for (int64_t tree = 1; tree <= 17; ++tree) {
    for (int64_t leaf = 0; leaf < tree; ++leaf) {
      EXPECT_EQ(message_of([&] {
                  verify_inclusion(LogEntry::parse(Json::parse(
                      world().bundle({.leaf = leaf, .tree = tree})[Ordered::json_pointer(kEntry)].dump(), "entry")));
                }),
                "no error")
          << leaf << " of " << tree;
    }
  }
  Ordered no_ct = world().root();
  no_ct.erase("ctlogs");
  EXPECT_EQ(verified(world().bundle({.certificate_timestamp = false}), "hello world", no_ct), "no error");
  EXPECT_EQ(verified(edited("/messageSignature/messageDigest", nullptr)), "no error");
}

TEST(Signature, TheBuiltInRootIsSigstores) {
  const TrustRoot root = TrustRoot::current();
  EXPECT_GE(root.logs.size(), 2u);
  EXPECT_GE(root.authorities.size(), 2u);
  EXPECT_GE(root.clocks.size(), 1u);
  expect_has(message_of([&] { verify_bundle("hello world", world().bundle().dump(), root, signers()); }),
             {"a log that the trust root knows"});
}

// The policy that Python's `kernels` has.
TEST(Signature, TheDefaultSigners) {
  const std::vector<Signer> all = default_signers();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].issuer, "https://token.actions.githubusercontent.com");
  EXPECT_EQ(all[0].repository, "https://github.com/huggingface/kernels-community");
  std::vector<std::string> builders;
  for (const char* file : {"build", "build-mac", "build-windows", "sign-old-builds"}) {
    builders.push_back(cat(all[0].repository, "/.github/workflows/", file, ".yaml@refs/heads/main"));
  }
  EXPECT_EQ(all[0].builders, builders);
}

TEST(Signature, EveryWayToBeBad) {
  const SigstoreWorld other;
  Ordered mixed = world().root();  // the other's authorities with our logs
  mixed["certificateAuthorities"] = other.root()["certificateAuthorities"];
  Ordered over = world().root();
  over["tlogs"][0]["publicKey"]["validFor"] = {{"end", "2023-06-01T00:00:00Z"}};
  Ordered later = world().root();
  later["certificateAuthorities"][0]["validFor"] = {{"start", "2024-06-01T00:00:00Z"}};
  const std::string entry = kEntry;
  const auto proof = [&](const char* key) { return entry + "/inclusionProof/" + key; };
  const Ordered good = world().bundle();
  const std::string root_hash = *from_base64(good[Ordered::json_pointer(proof("rootHash"))].get<std::string>());
  struct Row {
    const char* what;
    std::string got, says;
  };
  const Row table[] = {
      {"another file", verified(good, "hello World"), "a bundle of this file"},
      {"another file, no digest", verified(edited("/messageSignature/messageDigest", nullptr), "hello World"),
       "a signature of this file"},
      {"a signature by another key", verified(world().bundle({.foreign_key = true})), "a signature of this file"},
      {"another's root", verified(good, "hello world", other.root()), "a log that the trust root knows"},
      {"another's authority", verified(good, "hello world", mixed), "chains to the trust root"},
      {"a log that is retired", verified(good, "hello world", over), "a log that was in use"},
      {"an authority not yet there", verified(good, "hello world", later), "chains to the trust root"},
      {"signed after the certificate", verified(world().bundle({.signed_at = test_support::kSignedAt + 601})),
       "valid when it signed"},
      {"signed before the certificate", verified(world().bundle({.signed_at = test_support::kSignedAt - 61})),
       "valid when it signed"},
      {"no certificate timestamp", verified(world().bundle({.certificate_timestamp = false})), "without timestamps"},
      {"another's certificate timestamp", verified(world().bundle({.foreign_certificate_log = true})),
       "timestamps of others"},
      {"for servers", verified(world().bundle({.extended_usage = "serverAuth"})), "code signing"},
      {"for anything", verified(world().bundle({.extended_usage = ""})), "code signing"},
      {"for agreeing on keys", verified(world().bundle({.usage = "critical,keyAgreement"})), "digital signatures"},
      {"an authority's own",
       verified(world().bundle({.usage = "critical,digitalSignature,keyCertSign", .basic = "critical,CA:TRUE"})),
       "for signing"},
      {"another issuer", verified(world().bundle({.issuer = "https://evil.test"})),
       "issuer 'https://evil.test' is not"},
      {"two issuers", verified(world().bundle({.issuer_v1 = "https://evil.test"})), "one issuer"},
      {"another repository", verified(world().bundle({.repository = "https://git.test/org/kernels2"})), "repository"},
      {"another workflow", verified(world().bundle({.builder = "https://git.test/org/kernels/build.yaml@refs/pull/1"})),
       "builder"},
      {"nobody may sign", verified(good, "hello world", world().root(), {}), "a policy that names none"},
      {"another time", verified(edited(entry + "/integratedTime", cat(test_support::kSignedAt + 1))),
       "whose time the log has signed"},
      {"another index", verified(edited(entry + "/logIndex", "1001")), "whose time the log has signed"},
      {"another promise", verified(edited(entry + "/inclusionPromise/signedEntryTimestamp", base64("x"))),
       "whose time the log has signed"},
      {"a sibling changed", verified(edited(proof("hashes/0"), base64(sha256_of("x")))), "leads to the root"},
      {"a sibling too few", verified(edited(proof("hashes"), Ordered::array())), "an inclusion proof of 4 hashes"},
      {"another leaf", verified(edited(proof("logIndex"), "4")), "leads to the root"},
      {"a leaf outside", verified(edited(proof("logIndex"), "13")), "inside its log's tree"},
      {"a leaf below zero", verified(edited(proof("logIndex"), -1)), "inside its log's tree"},
      {"an empty tree", verified(edited(proof("treeSize"), "0")), "inside its log's tree"},
      {"another root", verified(edited(proof("rootHash"), base64(sha256_of("x")))), "leads to the root"},
      {"a checkpoint of another tree",
       verified(edited(proof("checkpoint/envelope"), world().checkpoint(sha256_of("x"), 13))), "one of another tree"},
      {"a checkpoint of another size",
       verified(edited(proof("checkpoint/envelope"), world().checkpoint(root_hash, 14))), "one of another tree"},
      {"a checkpoint by another log", verified(edited(proof("checkpoint/envelope"), other.checkpoint(root_hash, 13))),
       "no signature of the log"},
      {"a checkpoint that is none", verified(edited(proof("checkpoint/envelope"), "hello\n\nworld")), "a signed note"},
      {"no checkpoint", verified(edited(proof("checkpoint"), nullptr)), "a checkpoint in the inclusion proof"},
      {"no proof", verified(edited(entry + "/inclusionProof", nullptr)), "inclusionProof"},
      {"an entry of another file", verified(world().bundle({.logged_artifact = "other"})), "a log entry of this file"},
      {"a time that nothing signs", verified(world().bundle({.entry_version = 2})), "version 0.0.1 with its time"},
      {"no signed time", verified(edited(entry + "/inclusionPromise", nullptr)), "a signed time"},
      {"another kind", verified(edited(entry + "/kindVersion/kind", "dsse")), "kind hashedrekord"},
      {"two entries",
       verified(edited("/verificationMaterial/tlogEntries",
                       Ordered::array({good[Ordered::json_pointer(entry)], good[Ordered::json_pointer(entry)]}))),
       "one log entry"},
      {"no certificate", verified(edited("/verificationMaterial/certificate", nullptr)), "certificate"},
      {"a certificate that is none", verified(edited("/verificationMaterial/certificate/rawBytes", base64("x"))),
       "a certificate"},
      {"base64 that is none", verified(edited("/messageSignature/signature", "%%%%")), "base64"},
      {"a version of tomorrow", verified(edited("/mediaType", "application/vnd.dev.sigstore.bundle.v0.9+json")),
       "version 0.1, 0.2 or 0.3"},
      {"an attestation", verified(edited("/messageSignature", nullptr)), "messageSignature"},
  };
  for (const Row& row : table) EXPECT_NE(row.got.find(row.says), row.got.npos) << row.what << ": " << row.got;
  const std::string text = good.dump();
  for (size_t size = 0; size < text.size(); size += 97) {
    EXPECT_NE(
        message_of([&] { verify_bundle("hello world", text.substr(0, size), root_of(world().root()), signers()); }),
        "no error");
  }
}

TEST(Signature, OneFlippedByteIsNeverGood) {
  // In the bundle's bytes: refused wherever it matters. What it may hit in vain are the optional
  // messageDigest's key and the name in the checkpoint's last line, each shorter than a step.
  const std::string text = world().bundle().dump();
  const TrustRoot root = root_of(world().root());
  size_t accepted = 0, tried = 0;
  for (size_t at = 7; at < text.size(); at += 53, ++tried) {
    std::string bad = text;
    bad[at] = bad[at] == 'A' ? 'B' : 'A';
    accepted += message_of([&] { verify_bundle("hello world", bad, root, signers()); }) == "no error";
  }
  EXPECT_GT(tried, 50u);
  EXPECT_LE(accepted, 2u);
}

TEST(Signature, SignersFromAFile) {
  const auto parsed = [](const char* text) { return parse_signers(Json::parse(text, "signers")); };
  const auto one = parsed(
      R"([{"name": "me", "issuer": "https://issuer.test", "identities": ["https://git.test/org/kernels/build.yaml@refs/heads/main"]}])");
  EXPECT_EQ(verified(world().bundle(), "hello world", world().root(), one), "no error");
  const auto not_me = parsed(R"([{"name": "me", "issuer": "https://issuer.test", "identities": ["me@test"]}])");
  expect_has(verified(world().bundle(), "hello world", world().root(), not_me), {"identity", "is none of me@test"});
  for (const char* bad :
       {R"([{"name": "x", "issuer": "https://a"}])", R"([{"issuer": "https://a", "identities": ["x"]}])",
        R"([{"name": "x", "issuer": "", "identities": ["x"]}])", R"([{"name": "x", "issuer": "a", "identity": "x"}])",
        "{}"}) {
    EXPECT_NE(message_of([&] { parsed(bad); }), "no error") << bad;
  }
}

TEST(Signature, TrustRootsThatAreNone) {
  for (const char* bad : {"", "{}", R"({"mediaType": "x"})",
                          R"({"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"})"}) {
    EXPECT_NE(message_of([&] { TrustRoot::parse(bad, "root"); }), "no error") << bad;
  }
  for (const char* pointer :
       {"/tlogs/0/publicKey/rawBytes", "/certificateAuthorities/0/certChain/certificates/0/rawBytes",
        "/tlogs/0/publicKey/validFor/start"}) {
    Ordered root = world().root();
    root[Ordered::json_pointer(pointer)] = "AAAA";
    EXPECT_NE(message_of([&] { root_of(root); }), "no error") << pointer;
  }
}

// The steps in their order: each file is right or missing, and the first fault decides.
TEST(Signature, OfAVariant) {
  TempFolder folder;
  const TrustRoot root = root_of(world().root());
  const auto outcome = [&] { return verify_variant(folder.path(), root, signers()).outcome; };
  const auto sign = [&] {
    folder.write("metadata.json.sigstore",
                 world().bundle({.artifact = read_file(folder.path() / "metadata.json")}).dump());
  };
  EXPECT_EQ(outcome(), SignatureOutcome::kBundleMissing);
  folder.write("metadata.json.sigstore", "{");
  EXPECT_EQ(outcome(), SignatureOutcome::kBundleInvalid);
  folder.write("metadata.json.sigstore", world().bundle().dump());
  EXPECT_EQ(outcome(), SignatureOutcome::kMetadataMissing);
  folder.write("metadata.json", "not even JSON, and never parsed");
  EXPECT_EQ(outcome(), SignatureOutcome::kSignatureFailure);
  sign();
  EXPECT_EQ(outcome(), SignatureOutcome::kMetadataInvalid);
  folder.write(
      "metadata.json",
      R"({"name": "ab", "id": "_ab", "version": 1, "license": "mit", "python-depends": [], "backend": {"type": "cpu"}})");
  sign();
  EXPECT_EQ(outcome(), SignatureOutcome::kDigestMissing);
  folder.write("a.so", "x");
  write_digests(folder.path());
  EXPECT_EQ(outcome(), SignatureOutcome::kSignatureFailure);  // metadata.json has changed
  sign();
  const VariantVerdict good = verify_variant(folder.path(), root, signers());
  EXPECT_EQ(good.outcome, SignatureOutcome::kSuccess) << good.reason;
  EXPECT_EQ(good.by.signer, "ours");
  folder.write("a.so", "y");
  EXPECT_EQ(outcome(), SignatureOutcome::kDigestFailure);
  EXPECT_STREQ(outcome_name(SignatureOutcome::kDigestFailure), "DigestVerificationFailure");
}

}  // namespace
}  // namespace hotswap
