#include "hotswap/training/checkpoint/zip_file.h"

#include <algorithm>
#include <array>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr uint64_t kEndSize = 22, kLocatorSize = 20, kEnd64Size = 56, kCentralSize = 46, kLocalSize = 30;
constexpr uint64_t kMax32 = 0xffffffff, kMax16 = 0xffff;
constexpr uint64_t kAlignment = 64;  // of an entry's bytes, as torch has it

void put(std::string& to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

// Eight bytes a step: optimizer states are gigabytes.
struct CrcTables {
  std::array<std::array<uint32_t, 256>, 8> t{};
  CrcTables() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
      t[0][i] = c;
    }
    for (size_t k = 1; k < 8; ++k) {
      for (size_t i = 0; i < 256; ++i) t[k][i] = t[0][t[k - 1][i] & 0xff] ^ (t[k - 1][i] >> 8);
    }
  }
};

uint32_t crc32_of(std::string_view bytes) {
  static const CrcTables tables;
  const auto& t = tables.t;
  uint32_t c = 0xffffffff;
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])); };
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    c ^= byte(i) | byte(i + 1) << 8 | byte(i + 2) << 16 | byte(i + 3) << 24;
    c = t[7][c & 0xff] ^ t[6][c >> 8 & 0xff] ^ t[5][c >> 16 & 0xff] ^ t[4][c >> 24] ^ t[3][byte(i + 4)] ^
        t[2][byte(i + 5)] ^ t[1][byte(i + 6)] ^ t[0][byte(i + 7)];
  }
  for (; i < bytes.size(); ++i) c = t[0][(c ^ byte(i)) & 0xff] ^ (c >> 8);
  return ~c;
}

}  // namespace

void ZipReader::fail(const std::string& got) const {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("a whole archive as torch.save writes it in ", path().string()),
               .got = got,
               .next = "take an earlier checkpoint: this one was cut off or is of another kind"});
}

uint64_t ZipReader::number(uint64_t at, int bytes) const {
  const auto all = map_.bytes();
  if (at > all.size() || all.size() - at < static_cast<uint64_t>(bytes)) fail("a file that ends too early");
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(all[at + static_cast<uint64_t>(i)]) << (8 * i);
  return value;
}

ZipReader::ZipReader(const std::filesystem::path& file) : map_(file) {
  const Directory directory = find_directory();
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.count; ++i) at = read_entry(at);
}

// It stands at the end, so that a file that was cut off has none.
ZipReader::Directory ZipReader::find_directory() const {
  const uint64_t size = map_.bytes().size();
  if (size < kEndSize) fail(cat(size, " bytes"));
  const uint64_t first = size - std::min(size, kEndSize + kMax16);
  uint64_t at = size - kEndSize;
  while (number(at, 4) != kEnd) {
    if (at == first) fail("a file without an archive's directory at its end");
    --at;
  }
  if (at >= kLocatorSize && number(at - kLocatorSize, 4) == kLocator64) {
    const uint64_t end64 = number(at - kLocatorSize + 8, 8);
    if (number(end64, 4) != kEnd64) fail("a directory that is not where the archive's end has it");
    return {.offset = number(end64 + 48, 8), .count = number(end64 + 32, 8)};
  }
  return {.offset = number(at + 16, 4), .count = number(at + 10, 2)};
}

uint64_t ZipReader::read_entry(uint64_t at) {
  if (number(at, 4) != kCentral) fail("a directory with something else in it");
  const uint64_t flags = number(at + 8, 2), method = number(at + 10, 2);
  const uint64_t name_size = number(at + 28, 2), extra_size = number(at + 30, 2), comment_size = number(at + 32, 2);
  uint64_t packed = number(at + 20, 4), size = number(at + 24, 4), offset = number(at + 42, 4);
  std::string name;
  for (uint64_t i = 0; i < name_size; ++i) name.push_back(static_cast<char>(number(at + kCentralSize + i, 1)));
  if (method != 0 || (flags & 1) != 0) fail(cat("the entry ", name, ", which is compressed or encrypted"));
  // Sizes above 4 GiB stand in an extra field, in this order and only those that do not fit.
  uint64_t extra = at + kCentralSize + name_size;
  const uint64_t extra_end = extra + extra_size;
  while (extra + 4 <= extra_end) {
    const uint64_t id = number(extra, 2), length = number(extra + 2, 2);
    uint64_t field = extra + 4;
    if (id == 1) {
      for (uint64_t* value : {&size, &packed, &offset}) {
        if (*value != kMax32) continue;
        *value = number(field, 8);
        field += 8;
      }
    }
    extra += 4 + length;
  }
  if (number(offset, 4) != kLocal) fail(cat("no data where the directory has those of ", name));
  const uint64_t data = offset + kLocalSize + number(offset + 26, 2) + number(offset + 28, 2);
  const uint64_t file_size = map_.bytes().size();
  if (size != packed || data > file_size || file_size - data < size) fail(cat("an entry ", name, " beyond its end"));
  entries_[name] = {.offset = data, .size = size};
  return extra_end + comment_size;
}

std::vector<std::string> ZipReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, range] : entries_) names.push_back(name);
  return names;
}

std::span<const uint8_t> ZipReader::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail(cat("no entry ", name));
  return map_.bytes().subspan(found->second.offset, found->second.size);
}

void ZipWriter::write(const std::string& bytes) {
  out_.write(bytes);
  written_ += bytes.size();
}

void ZipWriter::add(const std::string& name, std::string_view bytes) {
  entries_.push_back({.name = name, .offset = written_, .size = bytes.size(), .crc = crc32_of(bytes)});
  const Entry& entry = entries_.back();
  const bool large = entry.size >= kMax32;
  std::string extra;
  if (large) {
    put(extra, 1, 2);
    put(extra, 16, 2);
    put(extra, entry.size, 8);
    put(extra, entry.size, 8);
  }
  const uint64_t data = written_ + kLocalSize + name.size() + extra.size() + 4;
  const uint64_t padding = (kAlignment - data % kAlignment) % kAlignment;
  put(extra, 0x4246, 2);  // "FB", torch's own
  put(extra, padding, 2);
  extra.append(padding, 'Z');

  std::string header;
  put(header, kLocal, 4);
  put(header, large ? 45 : 20, 2);
  put(header, 0, 8);  // no flags, stored, no date
  put(header, entry.crc, 4);
  for (int i = 0; i < 2; ++i) put(header, large ? kMax32 : entry.size, 4);
  put(header, name.size(), 2);
  put(header, extra.size(), 2);
  write(header + name + extra);
  out_.write(bytes);
  written_ += bytes.size();
}

void ZipWriter::commit() {
  const uint64_t begin = written_;
  for (const Entry& entry : entries_) {
    std::string extra;
    if (entry.size >= kMax32 || entry.offset >= kMax32) {
      put(extra, 1, 2);
      put(extra, (entry.size >= kMax32 ? 16 : 0) + (entry.offset >= kMax32 ? 8 : 0), 2);
      for (int i = 0; i < 2 && entry.size >= kMax32; ++i) put(extra, entry.size, 8);
      if (entry.offset >= kMax32) put(extra, entry.offset, 8);
    }
    std::string header;
    put(header, kCentral, 4);
    put(header, 45, 2);
    put(header, 45, 2);
    put(header, 0, 8);
    put(header, entry.crc, 4);
    for (int i = 0; i < 2; ++i) put(header, std::min(entry.size, kMax32), 4);
    put(header, entry.name.size(), 2);
    put(header, extra.size(), 2);
    put(header, 0, 2 + 2 + 2 + 4);  // no comment, first disk, no attributes
    put(header, std::min(entry.offset, kMax32), 4);
    write(header + entry.name + extra);
  }
  const uint64_t size = written_ - begin, end64 = written_;
  std::string end;
  put(end, kEnd64, 4);
  put(end, kEnd64Size - 12, 8);
  put(end, 45, 2);
  put(end, 45, 2);
  put(end, 0, 8);
  put(end, entries_.size(), 8);
  put(end, entries_.size(), 8);
  put(end, size, 8);
  put(end, begin, 8);
  put(end, kLocator64, 4);
  put(end, 0, 4);
  put(end, end64, 8);
  put(end, 1, 4);
  put(end, kEnd, 4);
  put(end, 0, 4);
  put(end, std::min<uint64_t>(entries_.size(), kMax16), 2);
  put(end, std::min<uint64_t>(entries_.size(), kMax16), 2);
  put(end, std::min(size, kMax32), 4);
  put(end, std::min(begin, kMax32), 4);
  put(end, 0, 2);
  write(end);
  out_.commit();
}

}  // namespace hotswap
