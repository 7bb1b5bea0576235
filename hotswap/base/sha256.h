// SHA-256, as OpenSSL has it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace hotswap {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::span<const uint8_t> bytes);
Sha256 sha256_file(const std::filesystem::path& file);
std::string to_hex(std::span<const uint8_t> bytes);     // lower case
std::string to_base64(std::span<const uint8_t> bytes);  // standard alphabet, padded: the form of metadata.json's digest

}  // namespace hotswap
