#include "hotswap/hub/sign/sigstore_world.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "hotswap/base/error.h"
#include "hotswap/base/sha256.h"

namespace hotswap::test_support {
namespace {

using Ordered = nlohmann::ordered_json;

Key new_key() { return Key(EVP_EC_gen("P-256")); }

std::string taken(unsigned char* bytes, int size) {
  std::string text(reinterpret_cast<char*>(bytes), static_cast<size_t>(size));
  OPENSSL_free(bytes);
  return text;
}

std::string public_der(EVP_PKEY* key) {
  unsigned char* out = nullptr;
  const int size = i2d_PUBKEY(key, &out);
  return taken(out, size);
}

std::string signature_of(EVP_PKEY* key, const std::string& bytes) {
  const std::unique_ptr<EVP_MD_CTX, FreeWith<EVP_MD_CTX_free>> context(EVP_MD_CTX_new());
  EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key);
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t size = 0;
  EVP_DigestSign(context.get(), nullptr, &size, data, bytes.size());
  std::string signature(size, '\0');
  EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, data, bytes.size());
  signature.resize(size);
  return signature;
}

void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, FreeWith<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (!extension)
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "an extension",
                 .got = openssl_error(),
                 .next = "look at the extension that the test asks for"});
  X509_add_ext(certificate, extension.get(), -1);
}

void add_raw_extension(X509* certificate, const std::string& oid, const std::string& bytes) {
  const std::unique_ptr<ASN1_OBJECT, FreeWith<ASN1_OBJECT_free>> object(OBJ_txt2obj(oid.c_str(), 1));
  const std::unique_ptr<ASN1_OCTET_STRING, FreeWith<ASN1_OCTET_STRING_free>> data(ASN1_OCTET_STRING_new());
  ASN1_OCTET_STRING_set(data.get(), reinterpret_cast<const unsigned char*>(bytes.data()),
                        static_cast<int>(bytes.size()));
  const std::unique_ptr<X509_EXTENSION, FreeWith<X509_EXTENSION_free>> extension(
      X509_EXTENSION_create_by_OBJ(nullptr, object.get(), 0, data.get()));
  X509_add_ext(certificate, extension.get(), -1);
}

std::string utf8_der(const std::string& text) { return std::string("\x0c") + static_cast<char>(text.size()) + text; }

Certificate new_certificate(const char* name, EVP_PKEY* key, int64_t from, int64_t to) {
  static int serial = 1;
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), from);
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), to);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  return certificate;
}

Certificate new_authority(const char* name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key) {
  Certificate certificate = new_certificate(name, key, kSignedAt - 1'000'000, kSignedAt + 100'000'000);
  X509* by = issuer ? issuer : certificate.get();
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(by));
  add_extension(certificate.get(), by, NID_basic_constraints, "critical,CA:TRUE");
  add_extension(certificate.get(), by, NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(certificate.get(), by, NID_subject_key_identifier, "hash");
  X509_sign(certificate.get(), issuer_key, EVP_sha256());
  return certificate;
}

std::string body_of(X509* certificate) {
  unsigned char* out = nullptr;
  const int size = i2d_re_X509_tbs(certificate, &out);
  return taken(out, size);
}

std::string number(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i) & 255);
  return text;
}

std::string hex(const std::string& bytes) {
  return to_hex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

// RFC 6962, by its recursive definition: the code under test walks from the leaf upwards.
std::string tree_hash(const std::vector<std::string>& leaves) {
  if (leaves.size() == 1) return sha256_of(std::string(1, '\0') + leaves[0]);
  size_t left = 1;
  while (left * 2 < leaves.size()) left *= 2;
  const auto middle = leaves.begin() + static_cast<long>(left);
  return sha256_of("\x01" + tree_hash({leaves.begin(), middle}) + tree_hash({middle, leaves.end()}));
}

std::vector<std::string> tree_path(size_t leaf, const std::vector<std::string>& leaves) {
  if (leaves.size() == 1) return {};
  size_t left = 1;
  while (left * 2 < leaves.size()) left *= 2;
  const auto middle = leaves.begin() + static_cast<long>(left);
  const std::vector<std::string> lower(leaves.begin(), middle), upper(middle, leaves.end());
  auto path = leaf < left ? tree_path(leaf, lower) : tree_path(leaf - left, upper);
  path.push_back(tree_hash(leaf < left ? upper : lower));
  return path;
}

std::string pem_of(X509* certificate) {
  const std::unique_ptr<BIO, FreeWith<BIO_free>> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

}  // namespace

SigstoreWorld::SigstoreWorld() : root_key_(new_key()), issuer_key_(new_key()), ct_key_(new_key()), log_key_(new_key()) {
  root_ = new_authority("root", root_key_.get(), nullptr, root_key_.get());
  issuer_ = new_authority("issuer", issuer_key_.get(), root_.get(), root_key_.get());
}

Ordered SigstoreWorld::root() const {
  const auto log = [](const Key& key) {
    const std::string der = public_der(key.get());
    return Ordered{{"publicKey", {{"rawBytes", base64(der)}, {"validFor", {{"start", "2023-01-01T00:00:00Z"}}}}},
                   {"logId", {{"keyId", base64(sha256_of(der))}}}};
  };
  const auto certificate = [](const Certificate& c) { return Ordered{{"rawBytes", base64(der_of(c.get()))}}; };
  return {
      {"mediaType", "application/vnd.dev.sigstore.trustedroot+json;version=0.1"},
      {"tlogs", Ordered::array({log(log_key_)})},
      {"ctlogs", Ordered::array({log(ct_key_)})},
      {"certificateAuthorities",
       Ordered::array({{{"certChain", {{"certificates", Ordered::array({certificate(issuer_), certificate(root_)})}}},
                        {"validFor", {{"start", "2023-01-01T00:00:00.5Z"}}}}})}};
}

void SigstoreWorld::add_certificate_timestamp(X509* leaf, bool foreign) const {
  unsigned char* out = nullptr;
  const int size = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(issuer_.get()), &out);
  const std::string issuer_hash = sha256_of(taken(out, size)), body = body_of(leaf);
  const std::string time = number(static_cast<uint64_t>(kSignedAt) * 1000, 8);
  const std::string signed_bytes =
      std::string(2, '\0') + time + number(1, 2) + issuer_hash + number(body.size(), 3) + body + number(0, 2);
  const Key other = new_key();
  const std::string signature = signature_of(foreign ? other.get() : ct_key_.get(), signed_bytes);
  const std::string sct = std::string(1, '\0') + sha256_of(public_der(ct_key_.get())) + time + number(0, 2) +
                          "\x04\x03" + number(signature.size(), 2) + signature;
  const std::string list = number(sct.size() + 2, 2) + number(sct.size(), 2) + sct;
  add_raw_extension(leaf, "1.3.6.1.4.1.11129.2.4.2", "\x04\x81" + number(list.size(), 1) + list);
}

Certificate SigstoreWorld::leaf(const Wish& wish, EVP_PKEY* key) const {
  Certificate c = new_certificate("leaf", key, kSignedAt - 60, kSignedAt + wish.valid_for);
  X509_set_issuer_name(c.get(), X509_get_subject_name(issuer_.get()));
  add_extension(c.get(), issuer_.get(), NID_basic_constraints, wish.basic);
  add_extension(c.get(), issuer_.get(), NID_key_usage, wish.usage);
  if (!wish.extended_usage.empty()) add_extension(c.get(), issuer_.get(), NID_ext_key_usage, wish.extended_usage);
  add_extension(c.get(), issuer_.get(), NID_subject_alt_name, "critical,URI:" + wish.builder);
  const std::string fulcio = "1.3.6.1.4.1.57264.1.";
  add_raw_extension(c.get(), fulcio + "1", wish.issuer_v1.empty() ? wish.issuer : wish.issuer_v1);
  add_raw_extension(c.get(), fulcio + "8", utf8_der(wish.issuer));
  add_raw_extension(c.get(), fulcio + "9", utf8_der(wish.builder));
  add_raw_extension(c.get(), fulcio + "12", utf8_der(wish.repository));
  X509_sign(c.get(), issuer_key_.get(), EVP_sha256());
  if (wish.certificate_timestamp) {
    add_certificate_timestamp(c.get(), wish.foreign_certificate_log);
    X509_sign(c.get(), issuer_key_.get(), EVP_sha256());
  }
  return c;
}

std::string SigstoreWorld::checkpoint(const std::string& root_hash, int64_t size, EVP_PKEY* by) const {
  const std::string text = cat("log.test - 1\n", size, "\n", base64(root_hash), "\n");
  const std::string id = sha256_of(public_der(log_key_.get())).substr(0, 4);
  return cat(text, "\n\u2014 log.test ", base64(id + signature_of(by ? by : log_key_.get(), text)), "\n");
}

Ordered SigstoreWorld::bundle(const Wish& wish) const {
  const Key key = new_key(), other = new_key();
  const Certificate certificate = leaf(wish, key.get());
  const std::string signature = signature_of(wish.foreign_key ? other.get() : key.get(), wish.artifact);
  const std::string digest = sha256_of(wish.artifact);
  const std::string logged = wish.logged_artifact.empty() ? digest : sha256_of(wish.logged_artifact);
  Ordered body = {{"apiVersion", cat("0.0.", wish.entry_version)}, {"kind", "hashedrekord"}};
  if (wish.entry_version == 1) {
    body["spec"] = {
        {"data", {{"hash", {{"algorithm", "sha256"}, {"value", hex(logged)}}}}},
        {"signature",
         {{"content", base64(signature)}, {"publicKey", {{"content", base64(pem_of(certificate.get()))}}}}}};
  } else {
    body["spec"]["hashedRekordV002"] = {{"data", {{"algorithm", "SHA2_256"}, {"digest", base64(logged)}}},
                                        {"signature",
                                         {{"content", base64(signature)},
                                          {"verifier",
                                           {{"keyDetails", "PKIX_ECDSA_P256_SHA_256"},
                                            {"x509Certificate", {{"rawBytes", base64(der_of(certificate.get()))}}}}}}}};
  }
  const std::string text = body.dump(), log_id = sha256_of(public_der(log_key_.get()));
  std::vector<std::string> leaves;
  for (int64_t i = 0; i < wish.tree; ++i) leaves.push_back(i == wish.leaf ? text : cat("entry ", i));
  Ordered hashes = Ordered::array();
  for (const std::string& hash : tree_path(static_cast<size_t>(wish.leaf), leaves)) hashes.push_back(base64(hash));
  const std::string promised = cat(R"({"body":")", base64(text), R"(","integratedTime":)", wish.signed_at,
                                   R"(,"logID":")", hex(log_id), R"(","logIndex":1000})");
  const Ordered entry = {
      {"logIndex", "1000"},
      {"logId", {{"keyId", base64(log_id)}}},
      {"kindVersion", {{"kind", "hashedrekord"}, {"version", cat("0.0.", wish.entry_version)}}},
      {"integratedTime", cat(wish.signed_at)},
      {"inclusionPromise", {{"signedEntryTimestamp", base64(signature_of(log_key_.get(), promised))}}},
      {"inclusionProof",
       {{"logIndex", cat(wish.leaf)},
        {"rootHash", base64(tree_hash(leaves))},
        {"treeSize", cat(wish.tree)},
        {"hashes", hashes},
        {"checkpoint", {{"envelope", checkpoint(tree_hash(leaves), wish.tree)}}}}},
      {"canonicalizedBody", base64(text)}};
  const Ordered raw = {{"rawBytes", base64(der_of(certificate.get()))}};
  Ordered material;
  if (wish.version == 3) {
    material["certificate"] = raw;
  } else {
    material["x509CertificateChain"]["certificates"] = Ordered::array({raw});
  }
  material["tlogEntries"] = Ordered::array({entry});
  return {
      {"mediaType", wish.version == 3 ? "application/vnd.dev.sigstore.bundle.v0.3+json"
                                      : cat("application/vnd.dev.sigstore.bundle+json;version=0.", wish.version)},
      {"verificationMaterial", material},
      {"messageSignature",
       {{"messageDigest", {{"algorithm", "SHA2_256"}, {"digest", base64(digest)}}}, {"signature", base64(signature)}}}};
}

}  // namespace hotswap::test_support
