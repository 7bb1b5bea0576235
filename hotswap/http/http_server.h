// httplib's server over connections of our own, which know three things that its own do not: whether the client has
// left while nothing is written to it, a deadline for a whole request, and how to end without losing an answer that the
// client has not read yet.
#pragma once

#include <httplib.h>

#include <chrono>

namespace hotswap {

struct HttpTimeouts {
  std::chrono::milliseconds request{40000};     // from a request's first byte to the end of its body
  std::chrono::milliseconds keep_alive{75000};  // between requests
  std::chrono::milliseconds write{30000};       // that a client may read nothing
};

class HttpServer : public httplib::Server {
 public:
  explicit HttpServer(const HttpTimeouts& timeouts);

 private:
  bool process_and_close_socket(socket_t socket) override;
  HttpTimeouts timeouts_;
};

// In a handler of HttpServer: the client of the request, also for other threads.
class ClientConnection {
 public:
  static ClientConnection current();  // of the calling thread's request
  bool has_left() const;              // closed, or closed for writing: no client waits for the answer
  static void close_after_answer();   // of the calling thread's request, whose body was not read

 private:
  explicit ClientConnection(socket_t socket) : socket_(socket) {}
  socket_t socket_;
};

}  // namespace hotswap
