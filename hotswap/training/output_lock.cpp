#include "hotswap/training/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "hotswap/base/error.h"
#include "hotswap/base/log.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// Does the open file still have that name? The run that held it before may have removed it meanwhile.
bool is_file(int fd, const fs::path& file) {
  struct stat open {};
  struct stat named {};
  return ::fstat(fd, &open) == 0 && ::stat(file.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

std::string holder(int fd) {
  char text[32] = {};
  const ssize_t size = ::pread(fd, text, sizeof text - 1, 0);
  return size > 0 ? cat("process ", std::string(text, static_cast<size_t>(size))) : std::string("another process");
}

[[noreturn]] void refuse_folder(const fs::path& folder, const std::string& process) {
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = "an output folder that no other run writes to",
               .got = cat(folder.string(), ", where ", process, " is training"),
               .next = "name another folder, or wait until that run has ended"});
}

}  // namespace

std::shared_ptr<const OutputLock> OutputLock::take(const fs::path& folder, double wait) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait);
  const bool made = fs::create_directories(folder);
  const fs::path file = folder / kFile;
  while (true) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
      throw Error({.kind = ErrorKind::kUnavailable,
                   .wanted = "an output folder that can be written",
                   .got = cat(file.string(), ": ", std::generic_category().message(errno)),
                   .next = "name another folder, or correct its permissions"});
    }
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int why = errno;
      if (why == EWOULDBLOCK) {
        const std::string process = holder(fd);
        ::close(fd);
        if (std::chrono::steady_clock::now() >= until) refuse_folder(folder, process);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      log_warning("no flock on the file system of ", folder.string(), " (", std::generic_category().message(why),
                  "): two runs in it would not be noticed");
    } else if (!is_file(fd, file)) {
      ::close(fd);
      continue;
    }
    const std::string own = std::to_string(::getpid());
    if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, own.data(), own.size(), 0) < 0) {
      log_warning("the lock ", file.string(), " does not name its process: ", std::generic_category().message(errno));
    }
    return std::shared_ptr<const OutputLock>(new OutputLock(folder, made, fd));
  }
}

OutputLock::~OutputLock() {
  std::error_code ignored;
  fs::remove(folder_ / kFile, ignored);
  if (made_) fs::remove(folder_, ignored);  // only where it is empty
  ::close(fd_);
}

}  // namespace hotswap
