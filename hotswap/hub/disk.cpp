#include "hotswap/hub/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "hotswap/base/error.h"

namespace hotswap {

std::filesystem::path temporary_beside(const std::filesystem::path& file, const std::string& suffix) {
  thread_local std::mt19937_64 random{(static_cast<uint64_t>(std::random_device{}()) << 32) ^ std::random_device{}()};
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string middle = ".";
  for (uint64_t bits = random(), i = 0; i < 8; ++i, bits >>= 4) middle += kDigits[bits & 15];
  return file.parent_path() / (file.filename().string() + middle + suffix);
}

void replace_file(const std::filesystem::path& file, std::string_view bytes) {
  const auto temporary = temporary_beside(file, ".tmp");
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  bool good = fd >= 0;
  while (good && !bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    good = n > 0;
    if (good) bytes.remove_prefix(static_cast<size_t>(n));
  }
  good = good && ::rename(temporary.c_str(), file.c_str()) == 0;
  const int why = errno;
  if (fd >= 0) ::close(fd);
  if (good) return;
  ::unlink(temporary.c_str());
  throw Error({.wanted = "to write " + file.string(),
               .got = std::strerror(why),
               .next = "check the folder's permissions and the free space of the disk"});
}

}  // namespace hotswap
