// A Hub of one's own: the protocol of huggingface.co, read-only, over a folder (served_repos.h), for Python's clients
// and for ours. The mirror of a cluster without internet, and the test double of this room.
//
//   HubServer server({.folder = "/srv/hub", .port = 8080});
//   server.start();                       // answers from threads of its own
//   setenv("HF_ENDPOINT", server.url())
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hotswap/hub/serve/served_repos.h"

namespace hotswap {

struct HubServerOptions {
  std::filesystem::path folder = {};
  std::string host = "127.0.0.1";
  int port = 0;                            // 0: any free one
  std::string token = {};                  // every request must bring it; empty: open to all who reach the port
  std::filesystem::path certificate = {};  // PEM, with `key`: HTTPS
  std::filesystem::path key = {};
  std::vector<std::string> trusted_proxies = {"127.0.0.1",
                                              "::1"};  // whose X-Forwarded-* are believed: trusted_proxies.h
  int64_t large_from = 10 << 20;                       // bytes; larger files are LFS files
  std::string large_at = {};                           // "http://host:port": where LFS files are redirected; empty: not
  int connections = 4096;  // at once, a thread each; three quarters of them may be sending large files
  int page = 1000;         // entries of a tree in one answer
  double rescan_s = 2;     // how soon changes in the folder are seen
  std::function<void(const std::string& line)> on_request = nullptr;  // "GET /api/... 200", from any thread
};

class HubServer {
 public:
  explicit HubServer(HubServerOptions options);
  ~HubServer();
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  void start();  // returns when the port is open. Error when it cannot be had
  void run();    // the same, but answers from the calling thread's pool until stop()
  void stop();
  int port() const { return port_; }
  std::string url() const;
  int64_t bytes_sent() const { return bytes_sent_; }  // of files

 private:
  struct Impl;
  void bind();
  HubServerOptions options_;
  std::unique_ptr<Impl> impl_;
  std::thread thread_;
  int port_ = 0;
  std::atomic<int64_t> bytes_sent_ = 0;
};

}  // namespace hotswap
