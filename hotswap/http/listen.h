// What servers share: their port, and the key that a client must send.
#pragma once

#include <httplib.h>

#include <string>
#include <string_view>

namespace hotswap {

// A port that this process holds and no server listens on: connections are refused, and another server cannot have it.
// For what takes long before a server can answer. Error where it is taken or not allowed.
class HeldPort {
 public:
  HeldPort(const std::string& host, int port);  // 0: any free one
  ~HeldPort() { release(); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  int port() const { return port_; }
  void release();  // for the server that listens on it next

 private:
  socket_t socket_ = INVALID_SOCKET;
  int port_ = 0;
};

// Opens `port` of `host` (0: any free one) with a backlog for many connections, and for no other server. -> the port.
// Error where it is taken or not allowed.
int bind_and_listen(httplib::Server& server, const std::string& host, int port);

void check_address(const std::string& host);  // Error where it is neither an address nor a name that has one

// Raises this process's limit of open files to what it may be: a connection is one, and a file on its way another.
void allow_many_open_files();

std::string address_of(const std::string& host, int port);  // "127.0.0.1:8000", "[::1]:8000"
bool is_loopback(std::string_view host);                    // an address or a name of this machine's own interface

// Whether the value of a header Authorization is "Bearer " and the key; takes the same time for every wrong key.
bool is_bearer(std::string_view authorization, std::string_view key);

}  // namespace hotswap
