#pragma once

#include <string>
#include <string_view>

namespace hotswap::tokenizers {

// Standard alphabet, padded. `where` is what the error calls the text where it is something else.
std::string decode_base64(std::string_view text, const std::string& where);

}  // namespace hotswap::tokenizers
