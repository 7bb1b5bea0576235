#include "hotswap/hub/package/elf.h"

#include <elf.h>

#include <cstring>
#include <map>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"

namespace hotswap {
namespace {

class ElfReader {
 public:
  ElfReader(std::span<const uint8_t> bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  Elf read() {
    const auto header = at<Elf64_Ehdr>(0, "its header");
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) refuse("no ELF file");
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) refuse("another kind of ELF");
    if (header.e_type != ET_DYN) refuse("no shared library");
    Elf elf;
    elf.machine = header.e_machine == EM_X86_64    ? "x86_64"
                  : header.e_machine == EM_AARCH64 ? "aarch64"
                                                   : cat("machine ", header.e_machine);
    if (header.e_shentsize != sizeof(Elf64_Shdr)) refuse("no section table");
    for (size_t i = 0; i < header.e_shnum; ++i) {
      sections_.push_back(at<Elf64_Shdr>(checked(header.e_shoff, i * sizeof(Elf64_Shdr)), "its sections"));
    }
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_GNU_verneed) read_versions(section);
    }
    const Elf64_Shdr* numbers = nullptr;
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_GNU_versym) numbers = &section;
    }
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_DYNSYM) read_symbols(elf, section, numbers);
      if (section.sh_type == SHT_DYNAMIC) read_needed(elf, section);
    }
    return elf;
  }

 private:
  [[noreturn]] void refuse(const std::string& got) const {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a shared library (ELF, 64 bit, little endian) at " + where_,
                 .got = got,
                 .next = "build the package for this machine, or fetch it again"});
  }

  uint64_t checked(uint64_t a, uint64_t b) const {
    uint64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) refuse("an offset beyond its end");
    return sum;
  }

  template <typename T>
  T at(uint64_t offset, const char* what) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) refuse(cat(what, " beyond its end"));
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  // Text number `offset` of the string table that a section is linked to.
  std::string text(const Elf64_Shdr& section, uint64_t offset) const {
    if (section.sh_link >= sections_.size()) refuse("a section without its texts");
    const Elf64_Shdr& table = sections_[section.sh_link];
    if (offset >= table.sh_size) refuse("a name beyond its texts");
    const uint64_t start = checked(table.sh_offset, offset), end = checked(table.sh_offset, table.sh_size);
    if (end > bytes_.size()) refuse("texts beyond its end");
    const auto* from = reinterpret_cast<const char*>(bytes_.data()) + start;
    return {from, strnlen(from, end - start)};
  }

  void read_versions(const Elf64_Shdr& section) {
    uint64_t at_file = section.sh_offset;
    for (uint32_t i = 0; i < section.sh_info && i < 4096; ++i) {
      const auto file = at<Elf64_Verneed>(at_file, "its versions");
      uint64_t at_version = checked(at_file, file.vn_aux);
      for (uint32_t j = 0; j < file.vn_cnt; ++j) {
        const auto version = at<Elf64_Vernaux>(at_version, "its versions");
        versions_[version.vna_other] = text(section, version.vna_name);
        if (version.vna_next == 0) break;
        at_version = checked(at_version, version.vna_next);
      }
      if (file.vn_next == 0) break;
      at_file = checked(at_file, file.vn_next);
    }
  }

  void read_symbols(Elf& elf, const Elf64_Shdr& section, const Elf64_Shdr* numbers) const {
    for (uint64_t i = 1; i < section.sh_size / sizeof(Elf64_Sym); ++i) {  // the first one is empty
      const auto symbol = at<Elf64_Sym>(checked(section.sh_offset, i * sizeof(Elf64_Sym)), "its symbols");
      ElfSymbol found{
          .name = text(section, symbol.st_name), .version = {}, .weak = ELF64_ST_BIND(symbol.st_info) == STB_WEAK};
      if (numbers != nullptr) {
        const auto number = at<uint16_t>(checked(numbers->sh_offset, i * 2), "its versions");
        if (const auto version = versions_.find(number & 0x7fff); version != versions_.end()) {
          found.version = version->second;
        }
      }
      (symbol.st_shndx == SHN_UNDEF ? elf.undefined : elf.defined).push_back(std::move(found));
    }
  }

  void read_needed(Elf& elf, const Elf64_Shdr& section) const {
    for (uint64_t i = 0; i < section.sh_size / sizeof(Elf64_Dyn); ++i) {
      const auto entry = at<Elf64_Dyn>(checked(section.sh_offset, i * sizeof(Elf64_Dyn)), "its dynamic section");
      if (entry.d_tag == DT_NULL) return;
      if (entry.d_tag == DT_NEEDED) elf.needed.push_back(text(section, entry.d_un.d_val));
    }
  }

  std::span<const uint8_t> bytes_;
  const std::string& where_;
  std::vector<Elf64_Shdr> sections_;
  std::map<uint16_t, std::string> versions_;
};

}  // namespace

Elf parse_elf(std::span<const uint8_t> bytes, const std::string& where) { return ElfReader(bytes, where).read(); }

Elf read_elf(const std::filesystem::path& file) {
  const MappedFile map(file);
  return parse_elf(map.bytes(), file.string());
}

}  // namespace hotswap
