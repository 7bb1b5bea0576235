#include "hotswap/models/formats/gguf_write.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/models/formats/gguf_value_type.h"

namespace hotswap {
namespace {

using namespace gguf;

constexpr uint64_t kAlignment = 32;  // what readers take where general.alignment is absent

template <typename T>
std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string bytes_of_text(const std::string& text) { return bytes_of<uint64_t>(text.size()) + text; }

template <typename List, typename Write>
std::string bytes_of_list(uint32_t type, const List& values, Write write) {
  std::string bytes = bytes_of(type) + bytes_of<uint64_t>(values.size());
  for (const auto& value : values) bytes += write(value);
  return bytes;
}

uint64_t padded(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

[[noreturn]] void refuse_to_write(std::string expected, std::string got, const char* next) {
  throw Error(
      {.kind = ErrorKind::kInvalidArgument, .wanted = std::move(expected), .got = std::move(got), .next = next});
}

void take_name(std::vector<std::string>& names, const std::string& name, const char* what) {
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end())
    refuse_to_write(cat("each ", what, " of a GGUF file once, with a name"), cat("'", name, "'"), "rename it");
  names.push_back(name);
}

}  // namespace

void GgufWriter::key(const std::string& name, uint32_t type, const std::string& value) {
  take_name(key_names_, name, "key");
  keys_ += bytes_of_text(name) + bytes_of(type) + value;
}

void GgufWriter::text(const std::string& name, const std::string& value) { key(name, kString, bytes_of_text(value)); }

void GgufWriter::number(const std::string& name, int64_t value) {
  if (value < 0 || value > std::numeric_limits<uint32_t>::max())
    refuse_to_write(cat(name, " from 0 to 2^32 - 1"), cat(value), "check the model's config.json");
  key(name, kU32, bytes_of(static_cast<uint32_t>(value)));
}

void GgufWriter::real(const std::string& name, double value) { key(name, kF32, bytes_of(static_cast<float>(value))); }

void GgufWriter::flag(const std::string& name, bool value) {
  key(name, kBool, bytes_of(static_cast<uint8_t>(value ? 1 : 0)));
}

void GgufWriter::texts(const std::string& name, const std::vector<std::string>& values) {
  key(name, kArray, bytes_of_list(kString, values, bytes_of_text));
}

void GgufWriter::integers(const std::string& name, const std::vector<int32_t>& values) {
  key(name, kArray, bytes_of_list(kI32, values, bytes_of<int32_t>));
}

void GgufWriter::reals(const std::string& name, const std::vector<float>& values) {
  key(name, kArray, bytes_of_list(kF32, values, bytes_of<float>));
}

void GgufWriter::tensor(const std::string& name, const GgufType& type, const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t extent : shape) numel *= extent;
  if (shape.empty() || shape.size() > 4 || numel < 1 || shape.back() % type.block != 0) {
    refuse_to_write(cat("tensors of 1 to 4 dimensions with rows in whole blocks of ", type.block, " (", type.name, ")"),
                    cat("'", name, "' [", join(shape), "]"), "take another type for it");
  }
  take_name(names_, name, "tensor");
  table_ += bytes_of_text(name) + bytes_of(static_cast<uint32_t>(shape.size()));
  for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent)
    table_ += bytes_of(static_cast<uint64_t>(*extent));
  table_ += bytes_of(type.id) + bytes_of(end_);
  sizes_.push_back(static_cast<uint64_t>(numel / type.block) * type.block_size);
  end_ += padded(sizes_.back());
}

void GgufWriter::write(const std::filesystem::path& file, const std::function<at::Tensor(size_t)>& bytes) const {
  AtomicFile out(file);
  std::string head = "GGUF" + bytes_of(uint32_t{3}) + bytes_of<uint64_t>(sizes_.size()) +
                     bytes_of<uint64_t>(key_names_.size()) + keys_ + table_;
  head.resize(padded(head.size()));
  out.write(head);
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const at::Tensor data = bytes(i);
    if (data.scalar_type() != at::kByte || data.nbytes() != sizes_[i] || !data.is_contiguous()) {
      refuse_to_write(cat(sizes_[i], " bytes for tensor '", names_[i], "', contiguous"),
                      cat(data.scalar_type(), " [", join(data.sizes()), "]"), "give what its type and shape say");
    }
    out.write(data.const_data_ptr<uint8_t>(), data.nbytes());
    out.write(std::string(padded(sizes_[i]) - sizes_[i], '\0'));
  }
  out.commit();
}

}  // namespace hotswap
