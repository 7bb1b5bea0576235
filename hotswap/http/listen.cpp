#include "hotswap/http/listen.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr int kBacklog = 4096;  // connections that wait for accept(); the system's somaxconn may be lower

[[noreturn]] void refuse(const std::string& host, int port, const std::string& got) {
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat("to listen on ", address_of(host, port)),
               .got = got,
               .next = "choose another port, or stop the program that uses this one"});
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses addresses_of(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); failed != 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "an address of this machine, or a name of one, to listen on",
                 .got = cat("'", host, "': ", ::gai_strerror(failed)),
                 .next = "give 127.0.0.1 for this machine's programs only, or 0.0.0.0 for other machines, too"});
  }
  return {found, &::freeaddrinfo};
}

// A socket bound to the address; INVALID_SOCKET, and errno, where it cannot be had.
socket_t bound(const addrinfo& address, bool reuse) {
  const socket_t socket = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (socket == INVALID_SOCKET) return socket;
  const int on = 1, off = 0;
  if (reuse) ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.ai_family == AF_INET6) ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket, address.ai_addr, address.ai_addrlen) == 0) return socket;
  const int why = errno;
  ::close(socket);
  errno = why;
  return INVALID_SOCKET;
}

}  // namespace

HeldPort::HeldPort(const std::string& host, int port) {
  const Addresses addresses = addresses_of(host, port);
  // With SO_REUSEADDR two servers that do not listen yet could both hold it. Without, it cannot be had for a minute
  // after another server's connections ended.
  for (const bool reuse : {false, true}) {
    for (const addrinfo* address = addresses.get(); address != nullptr && socket_ == INVALID_SOCKET;
         address = address->ai_next)
      socket_ = bound(*address, reuse);
  }
  if (socket_ == INVALID_SOCKET)
    refuse(host, port, errno == EADDRINUSE ? "a port that is taken" : std::strerror(errno));
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  ::getsockname(socket_, reinterpret_cast<sockaddr*>(&name), &size);
  port_ = ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(name).sin_port);
}

void check_address(const std::string& host) { addresses_of(host, 0); }

void HeldPort::release() {
  if (socket_ != INVALID_SOCKET) ::close(std::exchange(socket_, INVALID_SOCKET));
}

int bind_and_listen(httplib::Server& server, const std::string& host, int port) {
  const auto listening = std::make_shared<socket_t>(INVALID_SOCKET);
  server.set_socket_options([listening](socket_t socket) {
    // Not httplib's own SO_REUSEPORT: with it a second server would start on the same port, and connections would go
    // to the one or the other.
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    *listening = socket;
  });
  int bound = port;
  if (port == 0) {
    bound = server.bind_to_any_port(host.c_str());
  } else if (!server.bind_to_port(host.c_str(), port)) {
    bound = -1;
  }
  // Once more: httplib's own backlog of five is compiled into its library.
  if (bound > 0 && ::listen(*listening, kBacklog) == 0) return bound;
  refuse(host, port, "a port that is taken or not allowed");
}

void allow_many_open_files() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

std::string address_of(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return cat(v6 ? "[" : "", host, v6 ? "]" : "", ":", port);
}

bool is_loopback(std::string_view host) {
  if (host == "localhost" || host == "::1" || host == "[::1]" || host == "::ffff:127.0.0.1") return true;
  in_addr address{};  // the whole text must be one: anyone can own the name 127.0.0.1.example.com
  return ::inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

bool is_bearer(std::string_view authorization, std::string_view key) {
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization.substr(0, kScheme.size()) != kScheme) return false;
  authorization.remove_prefix(kScheme.size());
  return authorization.size() == key.size() && CRYPTO_memcmp(authorization.data(), key.data(), key.size()) == 0;
}

}  // namespace hotswap
