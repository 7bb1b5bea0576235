// The dynamic part of an ELF shared library, 64 bit and little endian, read from its bytes: nothing is loaded or run.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace hotswap {

struct ElfSymbol {
  std::string name;
  std::string version;  // "GLIBC_2.14"; empty: none
  bool weak = false;
};

struct Elf {
  std::string machine;              // "x86_64", "aarch64", else the number
  std::vector<std::string> needed;  // "libc.so.6"
  std::vector<ElfSymbol> undefined, defined;
};

// Error where the bytes are no such library, or point outside themselves.
Elf parse_elf(std::span<const uint8_t> bytes, const std::string& where);
Elf read_elf(const std::filesystem::path& file);

}  // namespace hotswap
