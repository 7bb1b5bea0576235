#include "hotswap/cli/vectors/npy.h"

#include <string>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"

namespace hotswap {

void save_npy(const std::filesystem::path& file, const at::Tensor& rows) {
  const at::Tensor dense = rows.contiguous();
  std::string header =
      cat("{'descr': '<f4', 'fortran_order': False, 'shape': (", rows.size(0), ", ", rows.size(1), "), }");
  constexpr size_t kBefore = 10, kMultiple = 64;  // magic, version and length; data is aligned
  header.append(kMultiple - (kBefore + header.size() + 1) % kMultiple, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xFF);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  write_file(file, bytes);
}

}  // namespace hotswap
