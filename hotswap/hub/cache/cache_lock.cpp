#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "hotswap/base/log.h"
#include "hotswap/hub/cache/cache.h"

namespace hotswap {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20), kSay = std::chrono::milliseconds(10000);

int open_lock(const std::filesystem::path& file) {
  std::error_code code;
  std::filesystem::create_directories(file.parent_path(), code);
  int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0664);
  if (fd >= 0) {
    ::fchmod(fd, 0664);  // past the umask: members of the group wait for each other, as with Python
  } else if (errno == EEXIST) {
    fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  }
  if (fd < 0 && errno != ENOENT) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "to lock " + file.string(),
                 .got = std::strerror(errno),
                 .next = "check the permissions of the cache's .locks folder"});
  }
  return fd;
}

// Somebody may have removed the file while we waited: then our lock guards no name.
bool still_there(int fd, const std::filesystem::path& file) {
  struct stat ours {
  }, named{};
  return ::fstat(fd, &ours) == 0 && ::stat(file.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
         ours.st_dev == named.st_dev;
}

}  // namespace

CacheLock::CacheLock(const std::filesystem::path& file) { take(file, true); }

std::unique_ptr<CacheLock> CacheLock::if_free(const std::filesystem::path& file) {
  std::unique_ptr<CacheLock> lock(new CacheLock);
  return lock->take(file, false) ? std::move(lock) : nullptr;
}

bool CacheLock::is_held(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

bool CacheLock::take(const std::filesystem::path& file, bool wait) {
  auto said = std::chrono::steady_clock::now();
  while (true) {
    if (fd_ < 0) fd_ = open_lock(file);
    if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
      if (still_there(fd_, file)) return true;
      ::close(fd_);
      fd_ = -1;
      continue;
    }
    if (fd_ >= 0 && (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK)) {
      log_warning("no flock on the file system of ", file.string(), ": two processes may download one file twice");
      ::close(fd_);
      fd_ = -1;
      return true;
    }
    if (fd_ >= 0 && errno != EWOULDBLOCK && errno != EINTR && errno != EACCES) {
      const int why = errno;
      ::close(fd_);
      fd_ = -1;
      throw Error({.kind = ErrorKind::kUnavailable,
                   .wanted = "to lock " + file.string(),
                   .got = std::strerror(why),
                   .next = "check the file system"});
    }
    if (!wait && fd_ >= 0) return false;
    std::this_thread::sleep_for(kPoll);
    if (std::chrono::steady_clock::now() - said > kSay) {
      said = std::chrono::steady_clock::now();
      log_info("still waiting for ", file.string(), ": another process downloads the same file");
    }
  }
}

CacheLock::~CacheLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace hotswap
