// For tests: a certificate for 127.0.0.1, signed by itself.
#pragma once

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>

namespace hotswap::test_support {

inline void write_certificate(const std::filesystem::path& certificate, const std::filesystem::path& key) {
  EVP_PKEY* pair = EVP_EC_gen("P-256");
  X509* x = X509_new();
  X509_set_version(x, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
  X509_gmtime_adj(X509_getm_notBefore(x), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x), 3600);
  X509_set_pubkey(x, pair);
  X509_NAME* name = X509_get_subject_name(x);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(x, name);
  X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
  X509_add_ext(x, names, -1);
  X509_EXTENSION_free(names);
  X509_sign(x, pair, EVP_sha256());
  FILE* out = std::fopen(certificate.c_str(), "w");
  PEM_write_X509(out, x);
  std::fclose(out);
  out = std::fopen(key.c_str(), "w");
  PEM_write_PrivateKey(out, pair, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(out);
  X509_free(x);
  EVP_PKEY_free(pair);
}

}  // namespace hotswap::test_support
