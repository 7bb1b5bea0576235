// The types of a GGUF file's metadata, by their codes. For sources of this folder.
#pragma once

#include <cstdint>

namespace hotswap::gguf {

enum ValueType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

}  // namespace hotswap::gguf
