// A server that does exactly what a test says, rights and wrongs, byte for byte: one connection, one request, one
// answer.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap::test_support {

struct Asked {
  std::string method, target;
  std::map<std::string, std::string> headers;  // lower case
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}
  // False when the other side has gone.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // A whole answer; `headers` are lines without their ends.
  void answer(int status, const std::vector<std::string>& headers, std::string_view body = "",
              bool head = false) const {
    std::string text = cat("HTTP/1.1 ", status, " Said\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n");
    for (const std::string& line : headers) text += line + "\r\n";
    send(text + "\r\n");
    if (!head) send(body);
  }

 private:
  int fd_;
};

class ScriptServer {
 public:
  using Script = std::function<void(const Asked&, const Peer&)>;

  explicit ScriptServer(Script script) : script_(std::move(script)) {
    listen_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listen_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listen_, 64) != 0 ||
        ::getsockname(listen_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw Error({.kind = ErrorKind::kUnavailable,
                   .wanted = "a loopback port",
                   .got = "none",
                   .next = "allow the test to listen"});
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { serve(); });
  }
  ~ScriptServer() {
    stop_ = true;
    ::shutdown(listen_, SHUT_RDWR);
    acceptor_.join();
    ::close(listen_);
    for (std::thread& thread : threads_) thread.join();
  }
  ScriptServer(const ScriptServer&) = delete;
  ScriptServer& operator=(const ScriptServer&) = delete;

  std::string url() const { return cat("http://127.0.0.1:", port_); }
  std::vector<Asked> asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  size_t count(std::string_view method) const {
    size_t n = 0;
    for (const Asked& one : asked()) n += one.method == method ? 1 : 0;
    return n;
  }

 private:
  void serve() {
    while (!stop_) {
      const int fd = ::accept4(listen_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      threads_.emplace_back([this, fd] {
        timeval limit{.tv_sec = 10, .tv_usec = 0};
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        std::string text;
        char buffer[4096];
        while (text.find("\r\n\r\n") == text.npos) {
          const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
          if (n <= 0) break;
          text.append(buffer, static_cast<size_t>(n));
        }
        if (text.find("\r\n\r\n") != text.npos) {
          const Asked asked = parse(text);
          {
            const std::lock_guard lock(mutex_);
            asked_.push_back(asked);
          }
          script_(asked, Peer(fd));
        }
        ::close(fd);
      });
    }
  }
  static Asked parse(const std::string& text) {
    const auto lines = split(text, '\n');
    const auto first = split(trim(lines[0]), ' ');
    Asked asked{.method = first[0], .target = first.size() > 1 ? first[1] : "", .headers = {}};
    for (size_t i = 1; i < lines.size(); ++i) {
      const size_t colon = lines[i].find(':');
      if (colon == std::string::npos) continue;
      asked.headers[lower(lines[i].substr(0, colon))] = trim(std::string_view(lines[i]).substr(colon + 1));
    }
    return asked;
  }

  Script script_;
  int listen_ = -1, port_ = 0;
  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_;
  std::vector<Asked> asked_;
  std::vector<std::thread> threads_;  // touched by the acceptor, and after it has ended
  std::thread acceptor_;
};

}  // namespace hotswap::test_support
