#include "hotswap/base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

ErrorKind kind_of_errno() {
  if (errno == ENOENT || errno == ENOTDIR) return ErrorKind::kNotFound;
  return errno == EISDIR || errno == ENAMETOOLONG ? ErrorKind::kInvalidArgument : ErrorKind::kUnavailable;
}

[[noreturn]] void fail(const char* wanted, const std::filesystem::path& file, const char* next) {
  throw Error(
      {.kind = kind_of_errno(), .wanted = cat(wanted, " ", file.string()), .got = std::strerror(errno), .next = next});
}

struct Descriptor {
  int fd;
  ~Descriptor() { ::close(fd); }
};

size_t size_of(int fd, const std::filesystem::path& file) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail("the size of", file, "check the file");
  if (!S_ISREG(info.st_mode)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a regular file at ", file.string()),
                 .got = "a folder, a device or a pipe",
                 .next = "give the file itself"});
  }
  return static_cast<size_t>(info.st_size);
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

void fsync_folder(const std::filesystem::path& folder) {
  const Descriptor d{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (d.fd >= 0) ::fsync(d.fd);  // makes the rename durable; a file system that cannot is no reason to fail
}

std::string read_all(int fd, const std::filesystem::path& file) {
  std::string bytes(size_of(fd, file), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("to read", file, "check the disk");
    if (n == 0) break;  // truncated while we read: the parser behind us will say what is missing
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

std::string read_file(const std::filesystem::path& file) {
  std::optional<std::string> bytes = read_file_if_there(file);
  if (!bytes) fail("to read", file, "check the path and its permissions");
  return *std::move(bytes);
}

std::optional<std::string> read_file_if_there(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0) fail("to read", file, "check the path and its permissions");
  const Descriptor d{fd};
  return read_all(fd, file);
}

void write_file(const std::filesystem::path& file, std::string_view bytes) {
  AtomicFile out(file);
  out.write(bytes);
  out.commit();
}

void replace_file(const std::filesystem::path& file, std::string_view bytes) {
  AtomicFile out(file, /*durable=*/false);
  out.write(bytes);
  out.commit();
}

std::filesystem::path temporary_beside(const std::filesystem::path& file, const std::string& suffix) {
  thread_local std::mt19937_64 random{(static_cast<uint64_t>(std::random_device{}()) << 32) ^ std::random_device{}()};
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string middle = ".";
  for (uint64_t bits = random(), i = 0; i < 8; ++i, bits >>= 4) middle += kDigits[bits & 15];
  return file.parent_path() / (file.filename().string() + middle + suffix);
}

AtomicFile::AtomicFile(std::filesystem::path target, bool durable) : target_(std::move(target)), durable_(durable) {
  const auto folder = folder_of(target_);
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  do {  // a plain open, so that the mode is what the umask asks for; a fork shares the random numbers, hence the loop
    temporary_ = temporary_beside(target_, ".tmp");
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail("to write in", folder, "check that the folder exists and is writable");
}

AtomicFile::~AtomicFile() {
  ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("to write", target_, "check the free space of the disk");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void AtomicFile::commit() {
  if (durable_ && ::fsync(fd_) != 0) fail("to write", target_, "check the free space of the disk");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("to write", target_, "check its permissions");
  temporary_.clear();
  if (durable_) fsync_folder(folder_of(target_));
}

MappedFile::MappedFile(const std::filesystem::path& file) : path_(file) {
  const Descriptor d{::open(file.c_str(), O_RDONLY | O_CLOEXEC)};
  if (d.fd < 0) fail("to read", file, "check the path and its permissions");
  size_ = size_of(d.fd, file);
  if (size_ == 0) return;  // mmap refuses an empty range
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, d.fd, 0);
  if (mapped == MAP_FAILED) fail("to map", file, "check the free memory");
  data_ = static_cast<const uint8_t*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

FileLock::FileLock(const std::filesystem::path& file) {
  std::error_code code;
  const bool folder = std::filesystem::is_directory(file, code);
  if (!folder) std::filesystem::create_directories(file.parent_path(), code);
  fd_ = ::open(file.c_str(), (folder ? O_RDONLY | O_DIRECTORY : O_RDWR | O_CREAT) | O_CLOEXEC, 0664);
  if (fd_ < 0) fail("to lock", file, "check that the folder exists and is writable");
  while (::flock(fd_, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    const int code_now = errno;
    ::close(fd_);
    errno = code_now;
    fail("to lock", file, "use a file system that has flock");
  }
}

FileLock::~FileLock() { ::close(fd_); }

}  // namespace hotswap
