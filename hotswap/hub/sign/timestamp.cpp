// Timestamps that are inside certificates (SCT) and that clocks give (RFC 3161); declared in transparency.h.
#include <openssl/bio.h>
#include <openssl/ct.h>
#include <openssl/err.h>
#include <openssl/ts.h>
#include <openssl/x509v3.h>

#include "hotswap/base/error.h"
#include "hotswap/hub/sign/transparency.h"

namespace hotswap {
namespace {

void big_endian(std::string& out, uint64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i) & 255);
}

// The certificate as the log saw it: without the timestamps, which it gave only then.
std::string precertificate(const X509* leaf) {
  const Certificate copy(X509_dup(leaf));
  const int at = X509_get_ext_by_NID(copy.get(), NID_ct_precert_scts, -1);
  X509_EXTENSION_free(X509_delete_ext(copy.get(), at));
  unsigned char* out = nullptr;
  const int size = i2d_re_X509_tbs(copy.get(), &out);
  if (size < 0)
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a certificate's body",
                 .got = openssl_error(),
                 .next = "fetch the signature again; if that does not help, its publisher must sign again"});
  std::string der(reinterpret_cast<char*>(out), static_cast<size_t>(size));
  OPENSSL_free(out);
  return der;
}

std::string issuer_key_hash(const X509* issuer) {
  unsigned char* out = nullptr;
  const int size = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(issuer), &out);
  if (size < 0)
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "an issuer's key",
                 .got = openssl_error(),
                 .next = "fetch the signature again; if that does not help, its publisher must sign again"});
  const std::string der(reinterpret_cast<char*>(out), static_cast<size_t>(size));
  OPENSSL_free(out);
  return sha256_of(der);
}

int64_t time_of(const ASN1_GENERALIZEDTIME* time) {
  struct tm parts {};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : -1;
}

bool verified_by(TS_RESP* response, const std::string& message, const Authority& clock, int64_t time) {
  X509_STORE* store = X509_STORE_new();
  X509_STORE_add_cert(store, clock.chain.back().get());
  // The clock's certificate counts as of the time that it gives, which need not be today.
  X509_VERIFY_PARAM_set_time(X509_STORE_get0_param(store), time);
  STACK_OF(X509)* others = sk_X509_new_null();
  for (const Certificate& certificate : clock.chain) {
    X509_up_ref(certificate.get());
    sk_X509_push(others, certificate.get());
  }
  const std::unique_ptr<TS_VERIFY_CTX, FreeWith<TS_VERIFY_CTX_free>> context(TS_VERIFY_CTX_new());
  TS_VERIFY_CTX_set_flags(context.get(), TS_VFY_VERSION | TS_VFY_SIGNATURE | TS_VFY_DATA);
  TS_VERIFY_CTX_set_data(context.get(), BIO_new_mem_buf(message.data(), static_cast<int>(message.size())));
  TS_VERIFY_CTX_set_store(context.get(), store);  // the context frees these three
  TS_VERIFY_CTX_set_certs(context.get(), others);
  const bool good = TS_RESP_verify_response(context.get(), response) == 1;
  ERR_clear_error();
  return good;
}

}  // namespace

void verify_certificate_timestamp(const X509* leaf, const X509* issuer, const std::vector<LogKey>& logs) {
  const std::unique_ptr<STACK_OF(SCT), FreeWith<SCT_LIST_free>> list(
      static_cast<STACK_OF(SCT)*>(X509_get_ext_d2i(leaf, NID_ct_precert_scts, nullptr, nullptr)));
  ERR_clear_error();
  const std::string body = list ? precertificate(leaf) : "";
  for (int i = 0; list && i < sk_SCT_num(list.get()); ++i) {
    const SCT* sct = sk_SCT_value(list.get(), i);
    unsigned char* bytes = nullptr;
    size_t size = SCT_get0_log_id(sct, &bytes);
    const LogKey* log = TrustRoot::find(logs, {reinterpret_cast<char*>(bytes), size});
    const uint64_t milliseconds = SCT_get_timestamp(sct);
    if (log == nullptr || SCT_get_version(sct) != SCT_VERSION_V1 ||
        !log->valid.holds(static_cast<int64_t>(milliseconds / 1000))) {
      continue;
    }
    std::string signed_bytes(2, '\0');  // version 1, a certificate's timestamp
    big_endian(signed_bytes, milliseconds, 8);
    big_endian(signed_bytes, 1, 2);  // a precertificate
    signed_bytes += issuer_key_hash(issuer);
    big_endian(signed_bytes, body.size(), 3);
    signed_bytes += body;
    size = SCT_get0_extensions(sct, &bytes);
    big_endian(signed_bytes, size, 2);
    signed_bytes.append(reinterpret_cast<char*>(bytes), size);
    size = SCT_get0_signature(sct, &bytes);
    if (verify_bytes(log->key.get(), signed_bytes, {reinterpret_cast<char*>(bytes), size})) return;
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "a certificate that a certificate log of the trust root has signed",
               .got = list ? "timestamps of others, or of another certificate" : "a certificate without timestamps",
               .next = "check the trust root"});
}

std::optional<int64_t> verify_clock(const std::string& token, const std::string& message,
                                    const std::vector<Authority>& clocks) {
  const auto* at = reinterpret_cast<const unsigned char*>(token.data());
  const std::unique_ptr<TS_RESP, FreeWith<TS_RESP_free>> response(
      d2i_TS_RESP(nullptr, &at, static_cast<long>(token.size())));
  ERR_clear_error();
  TS_TST_INFO* info = response ? TS_RESP_get_tst_info(response.get()) : nullptr;
  if (info == nullptr) return std::nullopt;
  const int64_t time = time_of(TS_TST_INFO_get_time(info));
  for (const Authority& clock : clocks) {
    if (clock.valid.holds(time) && verified_by(response.get(), message, clock, time)) return time;
  }
  return std::nullopt;
}

}  // namespace hotswap
