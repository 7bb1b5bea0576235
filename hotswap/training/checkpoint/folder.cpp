#include "hotswap/training/checkpoint/folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <regex>
#include <set>
#include <string>

#include "hotswap/base/error.h"
#include "hotswap/base/staged.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";

// Files were synced as they were written; the names in a folder are data of the folder.
void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (synced) return;
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat("to write ", folder.string(), " to the disk"),
               .got = std::strerror(error),
               .next = "look at the disk"});
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (read.ec != std::errc() || read.ptr != end || step < 0) return std::nullopt;
  return step;
}

}  // namespace

fs::path checkpoint_folder(const fs::path& output, int64_t step) {
  return output / (std::string(kPrefix) + std::to_string(step));
}

void write_checkpoint(const fs::path& target, const std::function<void(const fs::path& folder)>& write) {
  try {
    fs::create_directories(target.parent_path());
    const Staged staged(target);
    fs::create_directories(staged.path());
    write(staged.path());
    sync_folder(staged.path());
    staged.commit();
    sync_folder(target.parent_path());
  } catch (const fs::filesystem_error& error) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = cat("to write ", target.string()),
                 .got = error.what(),
                 .next = "check the free space of the disk; the checkpoint before it is whole"});
  }
}

std::vector<int64_t> checkpoint_steps(const fs::path& output) {
  std::vector<int64_t> steps;
  if (!fs::is_directory(output)) return steps;
  for (const auto& entry : fs::directory_iterator(output)) {
    const auto step = entry.is_directory() ? step_of(entry.path().filename().string()) : std::nullopt;
    if (step) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void remove_leftovers(const fs::path& output) {
  static const std::regex kLeftover(
      R"((checkpoint-.*\.[0-9a-f]{8}\.(incomplete|removed|replaced)|.*\.[0-9a-f]{8}\.tmp))");
  if (!fs::is_directory(output)) return;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(output)) {
    if (std::regex_match(entry.path().filename().string(), kLeftover)) found.push_back(entry.path());
  }
  for (const fs::path& one : found) fs::remove_all(one);
}

void drop_old_checkpoints(const fs::path& output, int64_t limit, const fs::path& best) {
  const auto steps = checkpoint_steps(output);
  std::set<int64_t> kept;
  if (!steps.empty()) kept.insert(steps.back());
  if (const auto step = step_of(best.filename().string())) kept.insert(*step);
  for (auto step = steps.rbegin(); step != steps.rend() && static_cast<int64_t>(kept.size()) < limit; ++step) {
    kept.insert(*step);
  }
  for (const int64_t step : steps) {
    if (kept.contains(step)) continue;
    // Under another name first: what is removed half way is no checkpoint.
    const fs::path folder = checkpoint_folder(output, step), gone = temporary_beside(folder, ".removed");
    fs::rename(folder, gone);
    fs::remove_all(gone);
  }
}

}  // namespace hotswap
