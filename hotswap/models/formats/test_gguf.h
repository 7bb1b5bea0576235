// For tests: a GGUF file by hand.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "hotswap/models/test_files.h"

namespace hotswap::test_support {

inline std::string text(const std::string& s) { return little_endian<uint64_t>(s.size()) + s; }

// Every part can be given wrong.
struct Gguf {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::string keys;  // as key() makes them
  uint64_t key_count = 0;
  std::string tensors;
  uint64_t tensor_count = 0;
  std::string data;
  uint64_t alignment = 32;

  template <typename T>
  Gguf& key(const std::string& name, uint32_t type, T value) {
    return key_bytes(name, type, little_endian(value));
  }
  Gguf& key_bytes(const std::string& name, uint32_t type, const std::string& value) {
    keys += text(name) + little_endian(type) + value;
    ++key_count;
    return *this;
  }
  Gguf& u32(const std::string& name, uint32_t value) { return key(name, 4, value); }
  Gguf& f32(const std::string& name, float value) { return key(name, 6, value); }
  Gguf& str(const std::string& name, const std::string& value) { return key_bytes(name, 8, text(value)); }

  Gguf& tensor_at(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type, uint64_t offset) {
    tensors += text(name) + little_endian(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) tensors += little_endian(extent);
    tensors += little_endian(type) + little_endian(offset);
    ++tensor_count;
    return *this;
  }
  Gguf& tensor(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type, const std::string& bytes) {
    tensor_at(name, extents, type, data.size());
    data += bytes;
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  std::string bytes() const {
    std::string all =
        magic + little_endian(version) + little_endian(tensor_count) + little_endian(key_count) + keys + tensors;
    if (!data.empty()) all.resize((all.size() + alignment - 1) / alignment * alignment);
    return all + data;
  }
};

inline std::string floats(std::initializer_list<float> values) {
  std::string bytes;
  for (const float value : values) bytes += little_endian(value);
  return bytes;
}

}  // namespace hotswap::test_support
