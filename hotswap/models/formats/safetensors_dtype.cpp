#include "hotswap/models/formats/safetensors_dtype.h"

#include <iterator>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// In the order in which files are written; measured with safetensors 0.8, which sorts by its enum, largest first.
constexpr SafetensorsDtype kTable[] = {
    {"U64", at::kUInt64, 8},
    {"I64", at::kLong, 8},
    {"F64", at::kDouble, 8},
    {"C64", at::kComplexFloat, 8},
    {"F32", at::kFloat, 4},
    {"U32", at::kUInt32, 4},
    {"I32", at::kInt, 4},
    {"BF16", at::kBFloat16, 2},
    {"F16", at::kHalf, 2},
    {"U16", at::kUInt16, 2},
    {"I16", at::kShort, 2},
    {"F8_E5M2FNUZ", at::kFloat8_e5m2fnuz, 1},
    {"F8_E4M3FNUZ", at::kFloat8_e4m3fnuz, 1},
    {"F8_E8M0", at::kFloat8_e8m0fnu, 1},
    {"F8_E4M3", at::kFloat8_e4m3fn, 1},
    {"F8_E5M2", at::kFloat8_e5m2, 1},
    {"I8", at::kChar, 1},
    {"U8", at::kByte, 1},
    {"BOOL", at::kBool, 1},
};

}  // namespace

const SafetensorsDtype* find_safetensors_dtype(std::string_view name) {
  for (const auto& row : kTable) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

const SafetensorsDtype* find_safetensors_dtype(at::ScalarType type) {
  for (const auto& row : kTable) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

std::string safetensors_dtype_names() {
  std::vector<std::string> names;
  for (const auto& row : kTable) names.emplace_back(row.name);
  return join(names);
}

int safetensors_dtype_rank(const SafetensorsDtype& dtype) { return static_cast<int>(std::end(kTable) - &dtype); }

}  // namespace hotswap
