#include "hotswap/hub/sign/crypto.h"

#include <openssl/err.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <time.h>

#include "hotswap/base/error.h"
#include "hotswap/base/sha256.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

int64_t seconds(const ASN1_TIME* time) {
  struct tm parts {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a certificate with a valid time",
                 .got = openssl_error(),
                 .next = "fetch the signature again; if that does not help, its publisher must sign again"});
  }
  return timegm(&parts);
}

X509* counted(X509* certificate) {
  X509_up_ref(certificate);
  return certificate;
}

}  // namespace

std::string openssl_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  char text[256] = "no reason given";
  if (code != 0) ERR_error_string_n(code, text, sizeof text);
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0 || text.size() > (size_t{1} << 30)) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    if (!is_digit(c) && !is_alpha(c) && c != '+' && c != '/') return std::nullopt;
  }
  std::string bytes(text.size() / 4 * 3, '\0');
  const int n =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()), bytes_of(text), static_cast<int>(text.size()));
  if (n < 0) return std::nullopt;
  bytes.resize(static_cast<size_t>(n) - padding);
  if (base64(bytes) != text) return std::nullopt;  // bits behind the last byte: a second spelling of the same
  return bytes;
}

std::string base64(std::string_view bytes) { return to_base64({bytes_of(bytes), bytes.size()}); }

std::string sha256_of(std::string_view bytes) {
  const Sha256 hash = sha256({bytes_of(bytes), bytes.size()});
  return {hash.begin(), hash.end()};
}

Key key_from_der(std::string_view der, const std::string& where) {
  const unsigned char* at = bytes_of(der);
  Key key(d2i_PUBKEY(nullptr, &at, static_cast<long>(der.size())));
  if (!key) {
    at = bytes_of(der);
    key.reset(d2i_PublicKey(EVP_PKEY_RSA, nullptr, &at, static_cast<long>(der.size())));
  }
  if (key && at == bytes_of(der) + der.size()) {
    ERR_clear_error();
    return key;
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "a public key at " + where,
               .got = openssl_error(),
               .next = "download the file again"});
}

Certificate certificate_from_der(std::string_view der, const std::string& where) {
  const unsigned char* at = bytes_of(der);
  Certificate certificate(d2i_X509(nullptr, &at, static_cast<long>(der.size())));
  if (certificate && at == bytes_of(der) + der.size()) return certificate;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "a certificate at " + where,
               .got = openssl_error(),
               .next = "download the file again"});
}

std::string der_of(const X509* certificate) {
  unsigned char* out = nullptr;
  const int size = i2d_X509(certificate, &out);
  if (size < 0)
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a certificate as DER",
                 .got = openssl_error(),
                 .next = "fetch the signature again; if that does not help, its publisher must sign again"});
  std::string der(reinterpret_cast<char*>(out), static_cast<size_t>(size));
  OPENSSL_free(out);
  return der;
}

bool verify_bytes(EVP_PKEY* key, std::string_view bytes, std::string_view signature) {
  const std::unique_ptr<EVP_MD_CTX, FreeWith<EVP_MD_CTX_free>> context(EVP_MD_CTX_new());
  const int type = EVP_PKEY_get_base_id(key);
  if (type != EVP_PKEY_EC && type != EVP_PKEY_RSA && type != EVP_PKEY_ED25519) return false;
  const EVP_MD* hash = type == EVP_PKEY_ED25519 ? nullptr : EVP_sha256();
  const bool good =
      context && EVP_DigestVerifyInit(context.get(), nullptr, hash, nullptr, key) == 1 &&
      EVP_DigestVerify(context.get(), bytes_of(signature), signature.size(), bytes_of(bytes), bytes.size()) == 1;
  ERR_clear_error();
  return good;
}

std::optional<int64_t> parse_time(const std::string& text) {
  struct tm parts {};
  const char* rest = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr) return std::nullopt;
  if (*rest == '.') {
    for (++rest; is_digit(*rest);) ++rest;
  }
  if (std::string_view(rest) != "Z") return std::nullopt;
  return timegm(&parts);
}

int64_t not_before(const X509* certificate) { return seconds(X509_get0_notBefore(certificate)); }
int64_t not_after(const X509* certificate) { return seconds(X509_get0_notAfter(certificate)); }

std::optional<std::string> extension(const X509* certificate, const std::string& oid) {
  const std::unique_ptr<ASN1_OBJECT, FreeWith<ASN1_OBJECT_free>> object(OBJ_txt2obj(oid.c_str(), 1));
  if (!object)
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "an OID",
                 .got = "'" + oid + "'",
                 .next = "numbers between dots, as 1.3.6.1"});
  const int at = X509_get_ext_by_OBJ(certificate, object.get(), -1);
  if (at < 0) return std::nullopt;
  if (X509_get_ext_by_OBJ(certificate, object.get(), at) >= 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("the extension ", oid, " once"),
                 .got = "two of it",
                 .next = "do not trust this signature: Sigstore issues no such certificate"});
  }
  const ASN1_OCTET_STRING* data = X509_EXTENSION_get_data(X509_get_ext(certificate, at));
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(data)),
                     static_cast<size_t>(ASN1_STRING_length(data)));
}

std::optional<std::string> utf8_string(std::string_view der) {
  const unsigned char* at = bytes_of(der);
  const std::unique_ptr<ASN1_UTF8STRING, FreeWith<ASN1_UTF8STRING_free>> text(
      d2i_ASN1_UTF8STRING(nullptr, &at, static_cast<long>(der.size())));
  ERR_clear_error();
  if (!text || at != bytes_of(der) + der.size()) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text.get())),
                     static_cast<size_t>(ASN1_STRING_length(text.get())));
}

std::vector<std::string> subject_names(const X509* certificate) {
  std::vector<std::string> names;
  const std::unique_ptr<GENERAL_NAMES, FreeWith<GENERAL_NAMES_free>> all(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; all && i < sk_GENERAL_NAME_num(all.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all.get(), i);
    if (name->type != GEN_URI && name->type != GEN_EMAIL) continue;
    const ASN1_STRING* text = name->d.ia5;
    names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                       static_cast<size_t>(ASN1_STRING_length(text)));
  }
  ERR_clear_error();
  return names;
}

std::vector<Certificate> verify_chain(const X509* leaf, const std::vector<X509*>& intermediates,
                                      const std::vector<X509*>& trusted, int64_t time) {
  const auto free_all = [](STACK_OF(X509) * stack) { sk_X509_pop_free(stack, X509_free); };
  const std::unique_ptr<X509_STORE, FreeWith<X509_STORE_free>> store(X509_STORE_new());
  for (X509* anchor : trusted) X509_STORE_add_cert(store.get(), anchor);
  const std::unique_ptr<STACK_OF(X509), decltype(free_all)> untrusted(sk_X509_new_null(), free_all);
  for (X509* middle : intermediates) sk_X509_push(untrusted.get(), counted(middle));

  const std::unique_ptr<X509_STORE_CTX, FreeWith<X509_STORE_CTX_free>> context(X509_STORE_CTX_new());
  if (X509_STORE_CTX_init(context.get(), store.get(), const_cast<X509*>(leaf), untrusted.get()) != 1) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "to verify a certificate chain",
                 .got = openssl_error(),
                 .next = "free some memory and try again"});
  }
  X509_VERIFY_PARAM* param = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_time(param, time);
  X509_VERIFY_PARAM_set_auth_level(param, 2);  // 112 bits: no SHA-1, no RSA below 2048
  if (X509_verify_cert(context.get()) != 1) {
    const char* why = X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a certificate that chains to the trust root, valid when it signed",
                 .got = why,
                 .next = "check the trust root"});
  }
  std::vector<Certificate> chain;
  const STACK_OF(X509)* found = X509_STORE_CTX_get0_chain(context.get());
  for (int i = 0; i < sk_X509_num(found); ++i) chain.emplace_back(counted(sk_X509_value(found, i)));
  return chain;
}

}  // namespace hotswap
