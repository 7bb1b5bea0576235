// The pieces of OpenSSL that signatures need, with owners that free them and errors that say what went wrong.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hotswap {

template <auto kFree>
struct FreeWith {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;

// Bytes are std::string here: what JSON, base64 and OpenSSL hand around.
std::optional<std::string> from_base64(std::string_view text);  // standard alphabet, padded; none where it is not that
std::string base64(std::string_view bytes);
std::string sha256_of(std::string_view bytes);  // 32 raw bytes

Key key_from_der(std::string_view der, const std::string& where);  // SubjectPublicKeyInfo, or a bare PKCS#1 RSA key
Certificate certificate_from_der(std::string_view der, const std::string& where);
std::string der_of(const X509* certificate);

// SHA-256 with ECDSA or RSA (PKCS#1), or Ed25519 on the bytes themselves.
bool verify_bytes(EVP_PKEY* key, std::string_view bytes, std::string_view signature);

// Seconds since 1970. RFC 3339 as trust roots have it: "2022-04-13T20:06:15Z", with or without fractions.
std::optional<int64_t> parse_time(const std::string& text);
int64_t not_before(const X509* certificate);
int64_t not_after(const X509* certificate);

// The bytes of an extension by its dotted OID; none where the certificate has no such, an Error where it has two.
std::optional<std::string> extension(const X509* certificate, const std::string& oid);
// The text of a DER UTF8String; none where the bytes are something else.
std::optional<std::string> utf8_string(std::string_view der);
std::vector<std::string> subject_names(const X509* certificate);  // URIs and e-mail addresses of the SAN

// The chain from a leaf through intermediates to one of `trusted`, valid at `time`. Returns it leaf first; an Error
// says why there is none.
std::vector<Certificate> verify_chain(const X509* leaf, const std::vector<X509*>& intermediates,
                                      const std::vector<X509*>& trusted, int64_t time);

std::string openssl_error();

}  // namespace hotswap
