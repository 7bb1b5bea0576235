// NumPy's file of one array, format 1.0.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace hotswap {

// rows: [rows, columns] float32 on the CPU. Atomic.
void save_npy(const std::filesystem::path& file, const at::Tensor& rows);

}  // namespace hotswap
