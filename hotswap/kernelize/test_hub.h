// For this room's tests: a served Hub with a cold cache of its own, and what lies in that cache, to be tampered with.
#pragma once

#include <mutex>

#include "hotswap/base/file.h"
#include "hotswap/hub/lock_kernels.h"
#include "hotswap/hub/serve/server.h"
#include "hotswap/kernelize/hub_kernels.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/kernelize/testing.h"

namespace hotswap::test_support {

class ServedKernels : public ::testing::Test {
 protected:
  ServedKernels()
      : server({.folder = served.path(), .rescan_s = 0, .on_request = [this](const std::string& line) {
                  const std::lock_guard lock(mutex);
                  lines.push_back(line);
                }}) {
    server.start();
    trust("acme");
    endpoint.emplace("HF_ENDPOINT", server.url());
  }
  // package: the folder with build/
  void serve(const std::filesystem::path& package, const std::string& repo, const std::string& revision) const {
    const std::filesystem::path place = served.path() / "kernels" / repo / revision;
    std::filesystem::remove_all(place);
    std::filesystem::create_directories(place);
    std::filesystem::copy(package / "build", place / "build", std::filesystem::copy_options::recursive);
  }
  void trust(const std::string& publishers) const {  // a line each
    write_file(served.path() / "trusted_publishers.txt", publishers);
  }
  size_t asked(const std::string& part = "") const {
    const std::lock_guard lock(mutex);
    return static_cast<size_t>(
        std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.find(part) != line.npos; }));
  }
  // The snapshot's file of the only variant that was fetched of a repository.
  std::filesystem::path fetched(const std::string& repo, const std::string& file) const {
    std::string folder = "kernels--" + repo;
    folder.replace(folder.find('/'), 1, "--");
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cache.path() / folder / "snapshots")) {
      if (entry.path().filename() == file) return entry.path();
    }
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = file + " of " + repo,
                 .got = "none in the cache",
                 .next = "fetch it first"});
  }
  // In the cache; the bytes as they were.
  std::string change_byte(const std::string& repo, const std::string& file, size_t at) const {
    const std::filesystem::path blob = std::filesystem::canonical(fetched(repo, file));
    const std::string good = read_file(blob);
    std::string bad = good;
    bad.at(at) = bad[at] == '1' ? '2' : '1';
    write_file(blob, bad);
    return good;
  }
  void restore(const std::string& repo, const std::string& file, const std::string& bytes) const {
    write_file(std::filesystem::canonical(fetched(repo, file)), bytes);
  }
  static Lockfile lock_of(const std::string& repo) {  // version 1
    Hub hub(HubOptions::from_env());
    return lock_dependencies(hub, {{.repo = repo, .version = 1}}, Lockfile::Form::kVariants);
  }

  TempFolder served, cache;
  mutable std::mutex mutex;
  std::vector<std::string> lines;
  HubServer server;
  ScopedEnv cached{"HF_HUB_CACHE", cache.path().string()}, kernels{"KERNELS_CACHE", cache.path().string()};
  ScopedEnv online{"HF_HUB_OFFLINE", "0"}, bars{"HF_HUB_DISABLE_PROGRESS_BARS", "1"};
  std::optional<ScopedEnv> endpoint;
};

}  // namespace hotswap::test_support
