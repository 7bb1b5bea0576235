#include "hotswap/http/http_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

namespace hotswap {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLinger{1000};    // for a client that still sends what was refused
constexpr Milliseconds kStopCheck{500};  // how soon an idle connection sees that the server stops
constexpr size_t kLingerBytes = 64 << 20;
constexpr size_t kKeepAliveRequests = 1000000;  // of a connection: no limit, and the header has a number

thread_local socket_t current_socket = INVALID_SOCKET;
thread_local bool close_after = false;

int polled(socket_t socket, short events, Milliseconds wait) {
  pollfd fd{.fd = socket, .events = events, .revents = 0};
  int count;
  do {
    count = ::poll(&fd, 1, static_cast<int>(std::max<int64_t>(0, wait.count())));
  } while (count < 0 && errno == EINTR);
  return count > 0 ? fd.revents : 0;
}

bool gone(int events) { return (events & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0; }

class Connection : public httplib::Stream {
 public:
  Connection(socket_t socket, const HttpTimeouts& timeouts, const std::atomic<socket_t>& listening)
      : socket_(socket), timeouts_(timeouts), listening_(listening) {}

  void begin_request() { deadline_ = Clock::now() + timeouts_.request; }
  bool wait_for_request(Milliseconds wait) const { return filled_ > taken_ || polled(socket_, POLLIN, wait) != 0; }

  bool is_readable() const override { return filled_ > taken_ || wait_for_bytes(); }
  bool is_writable() const override {
    const int events = polled(socket_, POLLOUT | POLLRDHUP, Milliseconds(0));
    return !gone(events);
  }

  ssize_t read(char* to, size_t size) override {
    if (taken_ == filled_) {
      if (!wait_for_bytes()) return -1;
      const ssize_t count = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
      if (count <= 0) return count;
      taken_ = 0;
      filled_ = static_cast<size_t>(count);
    }
    const size_t count = std::min(size, filled_ - taken_);
    std::copy_n(buffer_.data() + taken_, count, to);
    taken_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* from, size_t size) override {
    int events = 0;
    for (Milliseconds waited{0}; events == 0 && waited < timeouts_.write; waited += kStopCheck) {
      events = polled(socket_, POLLOUT, kStopCheck);
      if (listening_ == INVALID_SOCKET) break;
    }
    if ((events & POLLOUT) == 0 || (events & (POLLHUP | POLLERR)) != 0) return -1;
    return ::send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override { name(::getpeername, ip, port); }
  void get_local_ip_and_port(std::string& ip, int& port) const override { name(::getsockname, ip, port); }
  socket_t socket() const override { return socket_; }

 private:
  // False at the request's deadline, or soon after the server stops: half a request must not hold its end.
  bool wait_for_bytes() const {
    while (polled(socket_, POLLIN, std::min(remaining(), kStopCheck)) == 0) {
      if (remaining() <= Milliseconds(0) || listening_ == INVALID_SOCKET) return false;
    }
    return true;
  }
  Milliseconds remaining() const { return std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now()); }

  template <class Query>
  void name(Query query, std::string& ip, int& port) const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> service{};
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    if (query(socket_, plain, &size) != 0 || ::getnameinfo(plain, size, host.data(), host.size(), service.data(),
                                                           service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
      return;
    }
    ip = host.data();
    port = std::atoi(service.data());
  }

  socket_t socket_;
  const HttpTimeouts& timeouts_;
  const std::atomic<socket_t>& listening_;  // the server's; invalid once it stops
  Clock::time_point deadline_ = Clock::now();
  std::array<char, 8192> buffer_;
  size_t taken_ = 0, filled_ = 0;
};

// Whether bytes of the request may still come once it is answered: of a body that no handler reads, or whose end two
// headers give. They must not be taken for the next request, which a proxy before this server knows nothing of.
bool may_leave_bytes(const httplib::Request& request) {
  const bool chunked = request.has_header("Transfer-Encoding");
  const std::string length = request.get_header_value("Content-Length");
  if (chunked && !length.empty()) return true;
  const bool is_read = request.method == "POST";
  return !is_read && (chunked || (!length.empty() && length != "0"));
}

// Closing with bytes unread would reset the connection, and the client might never see the answer.
void close_gently(socket_t socket) {
  ::shutdown(socket, SHUT_WR);
  const auto end = Clock::now() + kLinger;
  std::array<char, 8192> dropped;
  for (size_t total = 0; total < kLingerBytes;) {
    const auto wait = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
    if (wait.count() <= 0 || polled(socket, POLLIN, wait) == 0) break;
    const ssize_t count = ::recv(socket, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (count <= 0) break;
    total += static_cast<size_t>(count);
  }
  ::close(socket);
}

}  // namespace

HttpServer::HttpServer(const HttpTimeouts& timeouts) : timeouts_(timeouts) {
  // What the header Keep-Alive promises; httplib's own is 5 s and 5 requests, and clients act on it.
  set_keep_alive_timeout(std::chrono::duration_cast<std::chrono::seconds>(timeouts.keep_alive).count());
  set_keep_alive_max_count(kKeepAliveRequests);
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  Connection connection(socket, timeouts_, svr_sock_);
  const auto wait_for_request = [&] {
    for (Milliseconds waited{0}; waited < timeouts_.keep_alive && svr_sock_ != INVALID_SOCKET; waited += kStopCheck) {
      if (connection.wait_for_request(kStopCheck)) return true;
    }
    return false;
  };
  const auto close_after_leftovers = [](httplib::Request& request) {
    if (!may_leave_bytes(request)) return;
    close_after = true;
    request.headers.erase("Connection");
    request.headers.emplace("Connection", "close");  // for the header of the answer
  };
  current_socket = socket;
  close_after = false;
  for (bool closed = false; !closed && !close_after && wait_for_request();) {
    connection.begin_request();
    if (!process_request(connection, /*close_connection=*/false, closed, close_after_leftovers)) break;
  }
  current_socket = INVALID_SOCKET;
  close_gently(socket);
  return true;
}

ClientConnection ClientConnection::current() { return ClientConnection(current_socket); }

void ClientConnection::close_after_answer() { close_after = true; }

bool ClientConnection::has_left() const {
  return socket_ != INVALID_SOCKET && gone(polled(socket_, POLLRDHUP, Milliseconds(0)));
}

}  // namespace hotswap
