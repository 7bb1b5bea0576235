#include "hotswap/hub/cache/partial_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <mutex>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/sha256.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".pieces.incomplete";
constexpr int64_t kOwner = 192;  // bytes for the writer's name
constexpr time_t kSilent = 600;  // seconds without a change after which a writer elsewhere is taken for dead

std::string first_line(const char* file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Where process ids mean the same thing as here: this boot of this machine, this namespace.
const std::string& this_place() {
  static const std::string place = [] {
    char name[64] = "";
    const ssize_t n = ::readlink("/proc/self/ns/pid", name, sizeof name - 1);
    return first_line("/proc/sys/kernel/random/boot_id") + " " + std::string(name, n > 0 ? static_cast<size_t>(n) : 0);
  }();
  return place;
}

// What this process is writing now: two of its threads may meet where locks do not hold.
std::mutex ours_mutex;
std::set<fs::path> ours;

bool is_alive(const std::string& owner, const fs::path& file, time_t changed) {
  const size_t space = owner.find(' ');
  const pid_t pid = static_cast<pid_t>(std::atol(owner.c_str()));
  if (space == std::string::npos || owner.substr(space + 1) != this_place() || pid <= 0) {
    return std::time(nullptr) - changed < kSilent;
  }
  if (pid == ::getpid()) {
    const std::lock_guard lock(ours_mutex);
    return ours.count(file) > 0;
  }
  return ::kill(pid, 0) == 0 || errno != ESRCH;
}

enum class Held { kByUs, kByAnother, kUnknown };  // unknown: a file system without locks

Held try_lock(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Held::kByUs;
  return errno == EWOULDBLOCK ? Held::kByAnother : Held::kUnknown;
}

void set_ours(const fs::path& file, bool writing) {
  const std::lock_guard lock(ours_mutex);
  writing ? void(ours.insert(file)) : void(ours.erase(file));
}

[[noreturn]] void fail(const std::string& wanted, int why) {
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = wanted,
               .got = std::strerror(why),
               .next = "check permissions and free space of the cache; what came so far is kept"});
}

void check_space(const fs::path& folder, int64_t size) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return;
  const auto free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  if (free >= static_cast<double>(size)) return;
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat(size, " bytes of free space in ", folder.string()),
               .got = cat(static_cast<int64_t>(free), " bytes"),
               .next = "free some, or set HF_HUB_CACHE to a folder on another disk"});
}

}  // namespace

ContentHash::ContentHash(const std::string& etag, int64_t size) {
  const bool large = etag.size() == 64 && is_hex(etag), git = etag.size() == 40 && is_hex(etag);
  if (!large && !(git && size >= 0)) return;
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  if (context == nullptr || EVP_DigestInit_ex(context, large ? EVP_sha256() : EVP_sha1(), nullptr) != 1) {
    EVP_MD_CTX_free(context);
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "SHA-1 and SHA-256 from OpenSSL",
                 .got = "a failure",
                 .next = "check its configuration"});
  }
  context_ = context;
  if (git) {
    const std::string header = cat("blob ", size);
    update({header.c_str(), header.size() + 1});
  }
}

ContentHash::~ContentHash() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void ContentHash::update(std::string_view bytes) {
  if (context_ != nullptr) EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes.data(), bytes.size());
}

std::string ContentHash::finish() {
  if (context_ == nullptr) return "";
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest, &size);
  return to_hex({digest, size});
}

PartialFile::PartialFile(fs::path blob, int64_t size, bool adopt)
    : blob_(std::move(blob)), size_(size), done_(static_cast<size_t>((size + kPiece - 1) / kPiece)) {
  if (adopt && adopt_one()) return;
  check_space(blob_.parent_path(), size_);
  create();
  set_ours(path_, true);
  if (::ftruncate(fd_, whole_size()) != 0) {
    const int why = errno;
    remove();
    fail(cat(size_, " bytes for ", path_.string()), why);
  }
  sign();
}

void PartialFile::create() {
  for (;;) {
    path_ = temporary_beside(blob_, kSuffix);
    // A plain open, so that the blob has the mode that the umask asks for, as Python's have.
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) fail("to write " + path_.string(), errno);
    struct stat info {};
    if (try_lock(fd_) != Held::kByAnother && ::fstat(fd_, &info) == 0 && info.st_nlink > 0) return;
    ::close(fd_);  // another one took it for a dead writer's, before it had our lock
    fd_ = -1;
  }
}

int64_t PartialFile::whole_size() const { return size_ + pieces() + kOwner; }

void PartialFile::sign() {
  std::string owner = cat(::getpid(), " ", this_place());
  owner.resize(kOwner, '\0');
  write(size_ + pieces(), owner);
}

bool PartialFile::adopt_one() {
  const std::string begin = blob_.filename().string() + ".";
  const std::string_view suffix = kSuffix;
  std::error_code code;
  for (fs::directory_iterator at(blob_.parent_path(), code), end; !code && at != end; at.increment(code)) {
    const std::string name = at->path().filename().string();
    if (name.size() != begin.size() + 8 + suffix.size() || name.rfind(begin, 0) != 0 ||
        name.compare(begin.size() + 8, suffix.size(), suffix) != 0) {
      continue;
    }
    const int fd = ::open(at->path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && adopt(at->path(), fd)) return true;
    if (fd >= 0) ::close(fd);
  }
  return false;
}

bool PartialFile::adopt(const fs::path& left, int fd) {
  const Held held = try_lock(fd);
  struct stat info {};
  if (held == Held::kByAnother || ::fstat(fd, &info) != 0) return false;
  // Its writer was cut off between the last two steps of commit(): all is there but the map and the name.
  const bool complete = info.st_size == size_;
  std::string map(done_.size(), '\0'), owner(kOwner, '\0');
  const bool whole = info.st_size == whole_size() &&
                     ::pread(fd, map.data(), map.size(), size_) == static_cast<ssize_t>(map.size()) &&
                     ::pread(fd, owner.data(), owner.size(), size_ + pieces()) == kOwner;
  const bool is_signed = owner[0] != '\0';
  if ((is_signed || held == Held::kUnknown) && is_alive(owner.c_str(), left, info.st_mtime)) return false;
  if (!whole && !complete) {
    ::unlink(left.c_str());  // of another size, or killed before it had one
    return false;
  }
  const fs::path mine = temporary_beside(blob_, kSuffix);
  set_ours(mine, true);
  if (::rename(left.c_str(), mine.c_str()) != 0) {  // another one was quicker
    set_ours(mine, false);
    return false;
  }
  path_ = mine;
  fd_ = fd;
  if (complete) {
    map.assign(map.size(), '\1');
    write(size_, map);
  }
  sign();
  for (size_t i = 0; i < map.size(); ++i) done_[i] = map[i] == 1 ? 1 : 0;
  return true;
}

PartialFile::~PartialFile() {
  if (fd_ >= 0 && bytes_done() == 0) remove();
  if (fd_ >= 0) ::close(fd_);
  set_ours(path_, false);
}

int64_t PartialFile::bytes_done() const {
  int64_t bytes = 0;
  for (int64_t i = 0; i < pieces(); ++i) bytes += done(i) ? piece_end(i) - piece_begin(i) : 0;
  return bytes;
}

std::vector<std::pair<int64_t, int64_t>> PartialFile::missing(int64_t most) const {
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (int64_t i = 0; i < pieces(); ++i) {
    if (done(i)) continue;
    const bool joins =
        !runs.empty() && runs.back().second + 1 == piece_begin(i) && piece_end(i) - runs.back().first <= most;
    if (joins) {
      runs.back().second = piece_end(i) - 1;
    } else {
      runs.emplace_back(piece_begin(i), piece_end(i) - 1);
    }
  }
  return runs;
}

void PartialFile::write(int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("to write " + path_.string(), n == 0 ? ENOSPC : errno);
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
}

void PartialFile::mark(int64_t piece) {
  const char one = 1;
  write(size_ + piece, {&one, 1});
  // On its way to the disk while the next ones come, or commit() would wait for all of it at once.
  (void)::sync_file_range(fd_, piece_begin(piece), piece_end(piece) - piece_begin(piece), SYNC_FILE_RANGE_WRITE);
  done_[static_cast<size_t>(piece)].store(1, std::memory_order_release);
}

std::string PartialFile::read(int64_t piece) const {
  std::string bytes(static_cast<size_t>(piece_end(piece) - piece_begin(piece)), '\0');
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n =
        ::pread(fd_, bytes.data() + got, bytes.size() - got, piece_begin(piece) + static_cast<int64_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("to read " + path_.string(), n == 0 ? EIO : errno);
    got += static_cast<size_t>(n);
  }
  return bytes;
}

void PartialFile::commit() {
  if (!missing(size_).empty()) {
    throw Error({.kind = ErrorKind::kInternal,
                 .wanted = "every piece of " + blob_.string(),
                 .got = "some",
                 .next = "this is a fault of hotswap"});
  }
  if (::ftruncate(fd_, size_) != 0 || ::fsync(fd_) != 0 || ::rename(path_.c_str(), blob_.c_str()) != 0) {
    fail("to complete " + blob_.string(), errno);
  }
  ::close(fd_);
  fd_ = -1;
}

void PartialFile::remove() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  ::unlink(path_.c_str());
}

}  // namespace hotswap
