#include "hotswap/kernelize/package/sealed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"

namespace hotswap {
namespace {

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U  // since Linux 6.3, where memory may otherwise be made without the right to run
#endif

int memory_file(const std::string& name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = ::memfd_create(name.c_str(), kFlags | MFD_EXEC);
  return fd < 0 && errno == EINVAL ? ::memfd_create(name.c_str(), kFlags) : fd;
}

}  // namespace

SealedFile::SealedFile(const std::filesystem::path& file) {
  const std::string content = read_file(file);
  size_ = content.size();
  fd_ = memory_file(file.filename().string().substr(0, 200));
  bool written = fd_ >= 0;
  for (size_t done = 0; written && done < size_;) {
    const ssize_t n = ::write(fd_, content.data() + done, size_ - done);
    if (n < 0 && errno == EINTR) continue;
    written = n > 0;
    done += written ? static_cast<size_t>(n) : 0;
  }
  written = written && ::fcntl(fd_, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
  void* mapped = written && size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd_, 0) : nullptr;
  if (written && mapped != MAP_FAILED) {
    data_ = static_cast<const uint8_t*>(mapped);
    return;
  }
  const int why = errno;
  if (fd_ >= 0) ::close(fd_);
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat("a copy of ", file.string(), " in memory that nobody can change"),
               .got = std::strerror(why),
               .next = "check the free memory; it takes Linux 3.17 or newer, and vm.memfd_noexec below 2"});
}

SealedFile::~SealedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
  if (!kept_) ::close(fd_);
}

std::string SealedFile::name() const { return cat("/proc/self/fd/", fd_); }

}  // namespace hotswap
