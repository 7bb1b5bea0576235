// An op's str argument. torch's conversion to std::string (ToImpl<std::string>, from 2.10 to 2.11 at least) copies the
// text to the heap and never frees the copy: 32 bytes of each call, and the text where it has over 15 characters. An
// op's function takes std::string all the same: the boxed function keeps a StringArgument for it meanwhile.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string>

namespace kernels {

struct StringArgument : std::string {
  using std::string::string;
};

}  // namespace kernels

namespace torch::stable::detail {

template <>
struct ToImpl<kernels::StringArgument> {
  static kernels::StringArgument call(StableIValue value, uint64_t /*extension_build_version*/, bool /*is_internal*/) {
    const auto handle = torch::stable::detail::to<StringHandle>(value);
    size_t length = 0;
    const char* data = nullptr;
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    kernels::StringArgument text(data, length);
    TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
    return text;
  }
};

template <>
struct UnboxType<std::string> {
  using type = kernels::StringArgument;
};

}  // namespace torch::stable::detail
