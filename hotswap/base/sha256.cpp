#include "hotswap/base/sha256.h"

#include <openssl/evp.h>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"

namespace hotswap {

Sha256 sha256(std::span<const uint8_t> bytes) {
  Sha256 digest{};
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1 ||
      size != digest.size()) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "SHA-256 from OpenSSL",
                 .got = "a failure",
                 .next = "check the OpenSSL installation"});
  }
  return digest;
}

Sha256 sha256_file(const std::filesystem::path& file) { return sha256(MappedFile(file).bytes()); }

std::string to_hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string to_base64(std::span<const uint8_t> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // EVP_EncodeBlock ends with a NUL
  const int n = EVP_EncodeBlock(reinterpret_cast<uint8_t*>(text.data()), bytes.data(), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(n));
  return text;
}

}  // namespace hotswap
