#include "hotswap/training/data/token_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "hotswap/base/error.h"
#include "hotswap/base/sha256.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMegatron("MMIDIDX\0\0", 9);
constexpr int64_t kLlmcHeader = 256 * 4;
constexpr int32_t kLlmc16 = 20240520, kLlmc32 = 20240801;
constexpr int64_t kMiB = 1 << 20;

template <typename T>
T value_at(std::span<const uint8_t> bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

[[noreturn]] void refuse_token_file(const fs::path& file, const std::string& expected, const std::string& got) {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(expected, " in ", file.string()),
               .got = got,
               .next = "write the file again, by Megatron's or llm.c's tools; docs/training.md has both formats"});
}

template <typename T>
void widen(const uint8_t* from, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value{};
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
    out[i] = static_cast<int64_t>(value);
  }
}

}  // namespace

TokenFile::TokenFile(const fs::path& file) : map_(file) {
  fs::path index = file;
  index.replace_extension(".idx");
  if (fs::exists(index)) {
    open_megatron(index);
  } else {
    open_llmc();
  }
  check_room();
}

// "MMIDIDX", u64 version, u8 type, u64 sequences, u64 documents, i32 lengths, i64 byte offsets, i64 document bounds.
void TokenFile::open_megatron(const fs::path& index) {
  const MappedFile map(index);
  const auto bytes = map.bytes();
  constexpr size_t kHeader = 9 + 8 + 1 + 8 + 8;
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kMegatron.size()));
  if (bytes.size() < kHeader || head != kMegatron)
    refuse_token_file(index, "Megatron's header MMIDIDX", cat(bytes.size(), " bytes"));
  if (const auto version = value_at<uint64_t>(bytes, 9); version != 1)
    refuse_token_file(index, "version 1", cat(version));
  struct Type {
    uint8_t code;
    Kind kind;
    int64_t width;
  };
  constexpr Type kTypes[] = {{1, Kind::kUint8, 1}, {4, Kind::kInt32, 4}, {5, Kind::kInt64, 8}, {8, Kind::kUint16, 2}};
  const auto code = value_at<uint8_t>(bytes, 17);
  const auto type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return t.code == code; });
  if (type == std::end(kTypes)) {
    refuse_token_file(index, "a type of tokens: 1 (uint8), 4 (int32), 5 (int64) or 8 (uint16)", cat(int{code}));
  }
  kind_ = type->kind;
  width_ = type->width;
  const auto sequences = value_at<uint64_t>(bytes, 18), documents = value_at<uint64_t>(bytes, 26);
  const uint64_t left = bytes.size() - kHeader;
  if (sequences > left / 12 || documents > (left - 12 * sequences) / 8 || 12 * sequences + 8 * documents != left) {
    refuse_token_file(index,
                      cat("lengths and offsets of ", sequences, " sequences and ", documents, " document bounds"),
                      cat(left, " bytes"));
  }
  // One stream: each sequence begins where the one before it ends.
  int64_t next = 0;
  for (size_t i = 0; i < sequences; ++i) {
    const auto length = value_at<int32_t>(bytes, kHeader + 4 * i);
    const auto offset = value_at<int64_t>(bytes, kHeader + 4 * sequences + 8 * i);
    if (length < 0 || offset != next) {
      refuse_token_file(index, cat("sequence ", i, " at byte ", next), cat("one of ", length, " tokens at ", offset));
    }
    next += length * width_;
  }
  size_ = next / width_;
  documents_ = documents > 0 ? static_cast<int64_t>(documents) - 1 : static_cast<int64_t>(sequences);
}

void TokenFile::open_llmc() {
  const auto bytes = map_.bytes();
  const auto all = static_cast<int64_t>(bytes.size());
  const auto magic = all >= kLlmcHeader ? value_at<int32_t>(bytes, 0) : 0;
  if (magic != kLlmc16 && magic != kLlmc32) {
    refuse_token_file(path(),
                      cat("llm.c's header, which begins with ", kLlmc16, " or ", kLlmc32,
                          ", or an .idx file of Megatron's beside it"),
                      all < kLlmcHeader ? cat(all, " bytes") : cat(magic));
  }
  kind_ = magic == kLlmc16 ? Kind::kUint16 : Kind::kUint32;
  width_ = magic == kLlmc16 ? 2 : 4;
  begin_ = kLlmcHeader;
  size_ = value_at<int32_t>(bytes, 8);
  if (size_ < 0 || size_ != (all - begin_) / width_)
    refuse_token_file(path(), cat(size_, " tokens, as its header has it"), cat((all - begin_) / width_));
}

void TokenFile::check_room() const {
  const int64_t there = static_cast<int64_t>(map_.bytes().size()) - begin_;
  if (size_ > there / width_)
    refuse_token_file(path(), cat(size_, " tokens of ", width_, " bytes"), cat(there, " bytes"));
}

void TokenFile::copy(int64_t first, int64_t count, int64_t* out) const {
  if (first < 0 || count < 0 || first > size_ - count) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat(count, " tokens from ", first, " on in ", path().string()),
                 .got = cat(size_, " tokens"),
                 .next = "use positions of this file"});
  }
  const uint8_t* from = map_.bytes().data() + begin_ + first * width_;
  switch (kind_) {
    case Kind::kUint8:
      return widen<uint8_t>(from, count, out);
    case Kind::kUint16:
      return widen<uint16_t>(from, count, out);
    case Kind::kInt32:
      return widen<int32_t>(from, count, out);
    case Kind::kUint32:
      return widen<uint32_t>(from, count, out);
    case Kind::kInt64:
      return widen<int64_t>(from, count, out);
  }
}

TokenFileDataset::TokenFileDataset(std::shared_ptr<const TokenFile> file, int64_t example_length, int64_t vocab_size)
    : file_(std::move(file)), length_(example_length), vocab_size_(vocab_size) {
  if (length_ >= 2 && size() > 0) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("at least one example, of two tokens or more, in ", file_->path().string()),
               .got = cat(file_->size(), " tokens and examples of ", length_),
               .next = "give more tokens, or use shorter examples"});
}

TrainingBatch TokenFileDataset::batch(const std::vector<int64_t>& examples) const {
  Tensor ids = at::empty({static_cast<int64_t>(examples.size()), length_}, at::TensorOptions(at::kLong));
  int64_t* out = ids.mutable_data_ptr<int64_t>();
  for (const int64_t example : examples) {
    file_->copy(example * length_, length_, out);
    for (int64_t i = 0; i < length_ && vocab_size_ > 0; ++i) {
      if (out[i] >= 0 && out[i] < vocab_size_) continue;
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("token ids below ", vocab_size_, ", the model's, in ", file_->path().string()),
                   .got = cat(out[i], " as token ", example * length_ + i),
                   .next = "write the file by this model's tokenizer"});
    }
    out += length_;
  }
  return {.input_ids = ids, .labels = ids};
}

std::string TokenFileDataset::fingerprint() const {
  const MappedFile map(file_->path());
  const auto bytes = map.bytes();
  const size_t part = std::min<size_t>(bytes.size(), kMiB);
  const auto changed = fs::last_write_time(file_->path()).time_since_epoch().count();
  return cat("tokens ", length_, " ", bytes.size(), " ", changed, " ", to_hex(sha256(bytes.first(part))), " ",
             to_hex(sha256(bytes.last(part))));
}

}  // namespace hotswap
