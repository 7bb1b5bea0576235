#include "hotswap/http/listen.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <sys/socket.h>

#include <memory>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr int kBacklog = 4096;  // connections that wait for accept(); the system's somaxconn may be lower

}  // namespace

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
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat("to listen on ", address_of(host, port)),
               .got = "a port that is taken or not allowed",
               .next = "choose another one"});
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
