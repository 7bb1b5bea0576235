// One file from the Hub into the cache: asked for once among all processes, resumed where it was cut, by several
// connections when it is large, checked against its size and hash before anybody can see it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hotswap/hub/cache/cache.h"
#include "hotswap/hub/net/client.h"

namespace hotswap {

struct FileJob {
  Repo repo;
  std::string commit, path;
  std::string etag;     // the blob's name: SHA-256 or git's SHA-1 of the content, or what the Hub made up
  int64_t size = -1;    // -1: unknown
  int connections = 1;  // at most; small files take one
  std::function<void(int64_t bytes)> advanced = nullptr;  // from any thread; negative when bytes proved wrong
};

// The file's place in the snapshot. HubError when it cannot be had or is not what its hash says; the cache then shows
// neither a part nor a wrong file.
std::filesystem::path fetch_file(HubClient& client, const HubCache& cache, const FileJob& job);

}  // namespace hotswap
