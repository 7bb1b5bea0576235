// For tests of downloads: one file, told and sent rightly, and what must hold of the cache afterwards.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "hotswap/base/file.h"
#include "hotswap/base/sha256.h"
#include "hotswap/base/test_support.h"
#include "hotswap/hub/hub.h"
#include "hotswap/hub/net/test_server.h"

namespace hotswap::test_support {

inline const Repo kRepo{RepoType::kModel, "acme/tiny"};
inline const std::string kSha(40, 'a');

inline std::string hash_of(std::string_view bytes) {
  return to_hex(sha256({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
}

inline HubOptions options_for(const std::string& endpoint, const std::filesystem::path& cache) {
  HubOptions options{.endpoint = endpoint, .cache = cache, .kernels_cache = cache, .progress = false};
  options.http.sleep = [](double) {};
  options.http.stall_s = 3;
  return options;
}

// One file, told and sent rightly.
struct File {
  std::string content, etag = hash_of(content);

  void head(const Peer& peer) const { head(peer, etag, content.size()); }
  void head(const Peer& peer, const std::string& said, size_t size) const {
    peer.send(cat("HTTP/1.1 200 OK\r\nConnection: close\r\nX-Repo-Commit: ", kSha, "\r\nETag: \"", said,
                  "\"\r\nContent-Length: ", size, "\r\n\r\n"));
  }
  // The first byte asked for.
  static size_t first(const Asked& asked) {
    const std::string range = asked.header("range");
    return range.empty() ? 0 : std::strtoull(range.c_str() + 6, nullptr, 10);
  }
  size_t last(const Asked& asked) const {
    const std::string range = asked.header("range");
    const size_t dash = range.find('-');
    return dash == std::string::npos || dash + 1 == range.size() ? content.size() - 1
                                                                 : std::strtoull(range.c_str() + dash + 1, nullptr, 10);
  }
  std::string get_head(const Asked& asked) const {
    const size_t a = first(asked), b = last(asked);
    return asked.header("range").empty()
               ? cat("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: ", content.size(), "\r\n\r\n")
               : cat("HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: ", b - a + 1,
                     "\r\nContent-Range: bytes ", a, "-", b, "/", content.size(), "\r\n\r\n");
  }
  std::string_view bytes(const Asked& asked) const {
    return std::string_view(content).substr(first(asked), last(asked) - first(asked) + 1);
  }
  void get(const Asked& asked, const Peer& peer) const {
    peer.send(get_head(asked));
    peer.send(bytes(asked));
  }
  void serve(const Asked& asked, const Peer& peer) const { asked.method == "HEAD" ? head(peer) : get(asked, peer); }
};

// What any reader of the cache could see: every blob is what its name says, every file of a snapshot is the content.
inline void expect_clean(const std::filesystem::path& cache, const std::string& content) {
  const std::filesystem::path repo = cache / "models--acme--tiny";
  if (!std::filesystem::exists(repo / "blobs"))
    return;  // a process may be killed before it makes either folder, or between them
  for (const auto& entry : std::filesystem::directory_iterator(repo / "blobs")) {
    const std::string name = entry.path().filename().string();
    if (name.size() != 64) continue;  // .incomplete
    EXPECT_EQ(hash_of(read_file(entry.path())), name);
  }
  if (!std::filesystem::exists(repo / "snapshots")) return;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(repo / "snapshots")) {
    if (entry.is_directory()) continue;
    EXPECT_EQ(entry.path().filename(), "x.bin");
    EXPECT_EQ(read_file(entry.path()), content);
  }
}

inline size_t incomplete_files(const std::filesystem::path& cache) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cache / "models--acme--tiny/blobs"))
    count += entry.path().extension() == ".incomplete" ? 1 : 0;
  return count;
}

}  // namespace hotswap::test_support
