// Where this very code lies on the disk: libhotswap, or the program that it is linked into.
#pragma once

#include <filesystem>

#include "hotswap/base/result.h"

namespace hotswap {

Result<std::filesystem::path> own_binary_path();

}  // namespace hotswap
