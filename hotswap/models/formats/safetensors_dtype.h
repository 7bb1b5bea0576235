// The element types of safetensors and torch's names for them.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

namespace hotswap {

struct SafetensorsDtype {
  const char* name;
  at::ScalarType type;
  uint64_t size;  // bytes of an element
};

const SafetensorsDtype* find_safetensors_dtype(std::string_view name);  // nullptr when unknown
const SafetensorsDtype* find_safetensors_dtype(at::ScalarType type);
std::string safetensors_dtype_names();
// The reference library writes tensors by descending rank of their type, then by name.
int safetensors_dtype_rank(const SafetensorsDtype& dtype);

}  // namespace hotswap
