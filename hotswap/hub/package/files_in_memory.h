// Files of a variant that this process has read for good, by their path in the variant's folder. What is verified in
// them is what is used: they are judged by these bytes, whatever lies on the disk by then.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace hotswap {

using FilesInMemory = std::map<std::string, std::span<const uint8_t>>;

inline std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace hotswap
