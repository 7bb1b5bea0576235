// Files of token ids that other tools write, mapped and never read as a whole: they may be larger than memory.
//
// - Megatron's: name.bin with name.idx beside it (also of datatrove, NeMo and forks of torchtitan);
// - llm.c's: name.bin with a header of 1024 bytes.
//
// Their tokens are one stream, cut into examples of equal length as PackedDataset's are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "hotswap/base/file.h"
#include "hotswap/training/data/dataset.h"

namespace hotswap {

class TokenFile {
 public:
  // Error where neither header is there, a type is not one of tokens, or lengths do not fit the file.
  explicit TokenFile(const std::filesystem::path& file);
  const std::filesystem::path& path() const { return map_.path(); }
  int64_t size() const { return size_; }  // tokens
  int64_t documents() const { return documents_; }
  // Tokens [first, first + count) to `out`.
  void copy(int64_t first, int64_t count, int64_t* out) const;

 private:
  enum class Kind : uint8_t { kUint8, kInt32, kInt64, kUint16, kUint32 };
  void open_megatron(const std::filesystem::path& index);
  void open_llmc();
  void check_room() const;

  MappedFile map_;
  Kind kind_ = Kind::kUint16;
  int64_t width_ = 2;  // bytes of a token
  int64_t begin_ = 0;  // byte of the first one
  int64_t size_ = 0, documents_ = 1;
};

class TokenFileDataset final : public Dataset {
 public:
  // vocab_size: an id that is not below it is an Error that names its position in the file; 0: not looked at.
  TokenFileDataset(std::shared_ptr<const TokenFile> file, int64_t example_length, int64_t vocab_size = 0);
  int64_t size() const override { return file_->size() / length_; }
  TrainingBatch batch(const std::vector<int64_t>& examples) const override;
  int64_t labels_in(const std::vector<int64_t>& examples) const override {
    return static_cast<int64_t>(examples.size()) * (length_ - 1);
  }
  // Of the file's size, time of change, first and last MiB.
  std::string fingerprint() const override;

 private:
  std::shared_ptr<const TokenFile> file_;
  int64_t length_, vocab_size_;
};

}  // namespace hotswap
