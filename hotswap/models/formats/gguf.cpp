#include "hotswap/models/formats/gguf.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "hotswap/base/error.h"
#include "hotswap/models/formats/gguf_value_type.h"

namespace hotswap {
namespace {

using namespace gguf;

constexpr uint64_t kMaxKey = 65535;  // the specification's limit
constexpr uint64_t kMaxTensorName = 1024;
constexpr uint32_t kMaxDims = 4;  // ggml's
constexpr uint64_t kMaxAlignment = 1 << 20;

constexpr const char* kValueTypes[] = {"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                       "bool",  "string", "array",  "uint64", "int64",  "float64"};

// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8_text(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return i + k < text.size() ? static_cast<uint8_t>(text[i + k]) : uint8_t{0}; };
    const uint8_t a = byte(0);
    const size_t length = a < 0x80                ? 1
                          : a >= 0xc2 && a < 0xe0 ? 2
                          : a >= 0xe0 && a < 0xf0 ? 3
                          : a >= 0xf0 && a < 0xf5 ? 4
                                                  : 0;
    if (length == 0) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((byte(k) & 0xc0) != 0x80) return false;
    }
    const uint8_t b = byte(1);
    if ((a == 0xe0 && b < 0xa0) || (a == 0xed && b >= 0xa0) || (a == 0xf0 && b < 0x90) || (a == 0xf4 && b >= 0x90)) {
      return false;
    }
    i += length;
  }
  return true;
}

}  // namespace

// Reads forward and never past the end.
class GgufFile::Reader {
 public:
  Reader(std::span<const uint8_t> bytes, const std::filesystem::path& file) : bytes_(bytes), file_(file) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

  [[noreturn]] void refuse(
      std::string wanted, std::string got,
      const char* next = "fetch the file again; it is damaged or no GGUF of version 2 or 3") const {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat(wanted, " in ", file_.string()),
                 .got = std::move(got),
                 .next = next});
  }

  template <typename T>
  T number(const char* what) {
    T value;
    need(sizeof(T), what);
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string string(const char* what, uint64_t max = UINT64_MAX) {
    const auto length = number<uint64_t>(what);
    if (length > max) refuse(cat(what, " of at most ", max, " bytes"), cat("length ", length, " at byte ", at_ - 8));
    need(length, what);
    std::string text(reinterpret_cast<const char*>(bytes_.data() + at_), length);
    if (!is_utf8_text(text)) refuse(cat(what, " in UTF-8"), cat("other bytes at byte ", at_));
    at_ += length;
    return text;
  }

  // A number of items of which each takes at least `least` bytes: refused before anything is reserved for them.
  uint64_t count(const char* what, uint64_t least) {
    const auto n = number<uint64_t>(what);
    if (n > left() / least)
      refuse(cat(what, " that the file has room for"),
             cat(n, " elements of at least ", least, " bytes each, with ", left(), " bytes left in the file"));
    return n;
  }

 private:
  void need(uint64_t size, const char* what) const {
    if (size > left()) refuse(cat(what, " of ", size, " bytes"), cat("the end of the file after ", left(), " of them"));
  }

  std::span<const uint8_t> bytes_;
  const std::filesystem::path& file_;
  uint64_t at_ = 0;
};

GgufFile::GgufFile(const std::filesystem::path& file) : GgufFile(file, OnePart{}) { join_parts(); }

GgufFile::GgufFile(const std::filesystem::path& file, OnePart) : maps_{std::make_shared<const MappedFile>(file)} {
  const auto bytes = maps_.front()->bytes();
  Reader in(bytes, path());
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0)
    in.refuse("the letters GGUF at the start", "others");
  in.number<uint32_t>("the magic number");
  version_ = in.number<uint32_t>("the version");
  if (version_ != 2 && version_ != 3) {
    in.refuse("GGUF version 2 or 3, little-endian",
              (version_ & 0xffff) == 0 ? "a big-endian file" : cat("version ", version_));
  }
  // The least that a tensor takes: name length and one letter, dimensions, one extent, type, offset. A key likewise.
  const auto tensors = in.count("a tensor count", 8 + 1 + 4 + 8 + 4 + 8);
  const auto keys = in.count("a metadata count", 8 + 1 + 4 + 1);
  for (uint64_t i = 0; i < keys; ++i) {
    const std::string key = in.string("a metadata key", kMaxKey);
    if (key.empty()) in.refuse("metadata keys with a name", "an empty one");
    const auto type = in.number<uint32_t>("a value type");
    if (!metadata_.emplace(key, read_value(in, key, type)).second)
      in.refuse("each metadata key once", cat("'", key, "' twice"));
  }
  for (uint64_t i = 0; i < tensors; ++i) {
    const std::string name = in.string("a tensor name", kMaxTensorName);
    if (name.empty()) in.refuse("tensors with a name", "an empty one");
    if (!tensors_.emplace(name, read_tensor(in, name)).second) in.refuse("each tensor once", cat("'", name, "' twice"));
    names_.push_back(name);
  }
  const auto alignment = static_cast<uint64_t>(get<int64_t>("general.alignment", 32));
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kMaxAlignment) {
    in.refuse(cat("general.alignment as a power of two up to ", kMaxAlignment), cat(alignment));
  }
  const uint64_t start = (in.at() + alignment - 1) / alignment * alignment;
  if (start > bytes.size() && !names_.empty())
    in.refuse("tensor data", cat("the end of the file at byte ", bytes.size()));
  const uint64_t data = std::min<uint64_t>(start, bytes.size());
  check_layout(bytes.size() - data, alignment);
  for (auto& [name, tensor] : tensors_) tensor.data = bytes.data() + data + tensor.offset;
}

GgufFile::Value GgufFile::read_value(Reader& in, const std::string& key, uint32_t type) {
  switch (type) {
    case kU8:
      return int64_t{in.number<uint8_t>("a uint8")};
    case kI8:
      return int64_t{in.number<int8_t>("an int8")};
    case kU16:
      return int64_t{in.number<uint16_t>("a uint16")};
    case kI16:
      return int64_t{in.number<int16_t>("an int16")};
    case kU32:
      return int64_t{in.number<uint32_t>("a uint32")};
    case kI32:
      return int64_t{in.number<int32_t>("an int32")};
    case kI64:
      return in.number<int64_t>("an int64");
    case kU64: {
      const auto value = in.number<uint64_t>("a uint64");
      if (value > static_cast<uint64_t>(INT64_MAX)) in.refuse(cat(key, " below 2^63"), cat(value));
      return static_cast<int64_t>(value);
    }
    case kF32:
      return double{in.number<float>("a float32")};
    case kF64:
      return in.number<double>("a float64");
    case kBool: {
      const auto value = in.number<uint8_t>("a bool");
      if (value > 1) in.refuse(cat(key, " as a bool, 0 or 1"), cat(+value));
      return value == 1;
    }
    case kString:
      return in.string("a string value");
    case kArray:
      return read_array(in, key);
    default:
      in.refuse(cat("a value type up to ", +kF64, " for ", key), cat(type));
  }
}

GgufFile::Value GgufFile::read_array(Reader& in, const std::string& key) {
  const auto type = in.number<uint32_t>("an array's type");
  if (type == kArray || type > kF64) {
    in.refuse(cat("an array of numbers, bools or strings for ", key),
              type == kArray ? std::string("nested arrays, which no reader of GGUF supports") : cat("type ", type));
  }
  constexpr uint64_t kLeast[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};  // bytes of an element, by type
  const uint64_t n = in.count("an array length", kLeast[type]);
  const auto gather = [&]<typename T>(std::vector<T> list) {
    list.reserve(n);
    for (uint64_t i = 0; i < n; ++i) {
      Value value = read_value(in, key, type);
      if constexpr (std::is_same_v<T, int64_t>) {
        list.push_back(std::holds_alternative<bool>(value) ? std::get<bool>(value) : std::get<int64_t>(value));
      } else {
        list.push_back(std::get<T>(std::move(value)));
      }
    }
    return list;
  };
  if (type == kString) return gather(std::vector<std::string>());
  if (type == kF32 || type == kF64) return gather(std::vector<double>());
  return gather(std::vector<int64_t>());
}

GgufTensor GgufFile::read_tensor(Reader& in, const std::string& name) {
  GgufTensor tensor;
  const auto dims = in.number<uint32_t>("a dimension count");
  if (dims < 1 || dims > kMaxDims) in.refuse(cat("1 to ", kMaxDims, " dimensions for tensor '", name, "'"), cat(dims));
  tensor.numel = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    const auto extent = in.number<uint64_t>("an extent");
    if (extent == 0 || extent > static_cast<uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(tensor.numel, static_cast<int64_t>(extent), &tensor.numel)) {
      in.refuse(cat("extents of tensor '", name, "' from 1, their product below 2^63"), cat(extent));
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  const auto type = in.number<uint32_t>("a tensor type");
  tensor.type = find_gguf_type(type);
  if (tensor.type == nullptr) {
    in.refuse(cat("a type of ggml's for tensor '", name, "'"), cat("type ", type),
              "take a file of another quantisation if its type is newer than this program; else fetch it again: it is "
              "damaged");
  }
  if (tensor.shape.back() % tensor.type->block != 0) {
    in.refuse(cat("rows of tensor '", name, "' in whole blocks of ", tensor.type->block, " (", tensor.type->name, ")"),
              cat("rows of ", tensor.shape.back()));
  }
  if (__builtin_mul_overflow(static_cast<uint64_t>(tensor.numel / tensor.type->block), tensor.type->block_size,
                             &tensor.size)) {
    in.refuse(cat("fewer than 2^64 bytes for tensor '", name, "'"), cat("[", join(tensor.shape), "]"));
  }
  tensor.offset = in.number<uint64_t>("a tensor offset");
  return tensor;
}

// Tensors follow one another, each padded to the alignment, and nothing follows the last: what every writer makes, and
// what llama.cpp asks for.
void GgufFile::check_layout(uint64_t data_size, uint64_t alignment) const {
  const Reader in(maps_.front()->bytes(), path());
  std::vector<std::string> order = names_;
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return std::tie(tensors_.at(a).offset, a) < std::tie(tensors_.at(b).offset, b);
  });
  uint64_t at = 0, end = 0;
  for (const std::string& name : order) {
    const GgufTensor& tensor = tensors_.at(name);
    if (tensor.offset != at) {
      in.refuse(cat("tensor '", name, "' at byte ", at, " of the data"),
                cat("offset ", tensor.offset, tensor.offset < at ? ": tensors overlap" : ": a hole"));
    }
    if (tensor.size > data_size || at > data_size - tensor.size) {
      in.refuse(cat("tensor '", name, "' of ", tensor.size, " bytes within ", data_size, " bytes of data"),
                cat("offset ", tensor.offset));
    }
    end = at + tensor.size;
    at = (end + alignment - 1) / alignment * alignment;
  }
  if (data_size > at) in.refuse(cat(at, " bytes of data"), cat(data_size, " bytes: the last belong to no tensor"));
}

template <typename T>
const T& GgufFile::at(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("metadata key '", key, "' in ", path().string()),
                 .got = "none",
                 .next = "convert the model again with a current llama.cpp"});
  }
  if (const T* value = std::get_if<T>(&found->second)) return *value;
  constexpr const char* kKinds[] = {"a bool", "an integer", "a float", "a string", "integers", "floats", "strings"};
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(kKinds[Value(T{}).index()], " for metadata key '", key, "' in ", path().string()),
               .got = kKinds[found->second.index()],
               .next = "convert the model again with a current llama.cpp"});
}

bool GgufFile::is_list(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found != metadata_.end() && std::holds_alternative<std::vector<int64_t>>(found->second);
}

template const bool& GgufFile::at(const std::string&) const;
template const int64_t& GgufFile::at(const std::string&) const;
template const double& GgufFile::at(const std::string&) const;
template const std::string& GgufFile::at(const std::string&) const;
template const std::vector<int64_t>& GgufFile::at(const std::string&) const;
template const std::vector<double>& GgufFile::at(const std::string&) const;
template const std::vector<std::string>& GgufFile::at(const std::string&) const;

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> result;
  for (const auto& [key, value] : metadata_) result.push_back(key);
  return result;
}

const GgufTensor& GgufFile::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("a tensor '", name, "' in ", path().string()),
                 .got = cat(tensors_.size(), " tensors without it"),
                 .next = "check the name"});
  }
  return found->second;
}

std::optional<Weight> GgufFile::encoded(const std::string& name) const {
  const GgufTensor& info = this->info(name);
  const auto format = weight_format_of_ggml(info.type->name);
  if (!format || (info.shape.size() != 2 && info.shape.size() != 3)) return std::nullopt;
  std::vector<int64_t> shape = info.shape;
  shape.back() = shape.back() / info.type->block * static_cast<int64_t>(info.type->block_size);
  at::Tensor bytes = at::empty(shape, at::TensorOptions().dtype(at::kByte));
  std::memcpy(bytes.mutable_data_ptr(), info.data, info.size);
  return Weight{.format = *format, .data = bytes, .logical_shape = info.shape};
}

at::Tensor GgufFile::tensor(const std::string& name, at::ScalarType dtype) const {
  const GgufTensor& info = this->info(name);
  if (!can_dequantise(*info.type)) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("tensor '", name, "' of a type among ", dequantisable_types(), " in ", path().string()),
                 .got = cat("type ", info.type->name),
                 .next = "take a file of another quantisation (Q4_K_M, Q8_0), or the safetensors checkpoint"});
  }
  at::Tensor result = at::empty(info.shape, at::TensorOptions().dtype(dtype));
  dequantise({.type = *info.type, .from = info.data, .to = result.data_ptr(), .dtype = dtype, .numel = info.numel});
  return result;
}

}  // namespace hotswap
