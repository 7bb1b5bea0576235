// What the server of requests withstands: any bytes on a connection end in answers, or in its end, and the next
// connection is served.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "hotswap/base/fuzz_support.h"
#include "hotswap/http/connection_threads.h"
#include "hotswap/http/http_server.h"
#include "hotswap/http/listen.h"

namespace hotswap {
namespace {

using test_support::must;

constexpr size_t kMaxFuzzBody = 4096;
constexpr size_t kMaxFuzzPath = 1024;  // httplib finds the handler by a regular expression, which recurses

// Answers as the servers of this program do: refusals before the body, and one handler that reads it.
class EchoServer {
 public:
  EchoServer() {
    server_.new_task_queue = [] { return new ConnectionThreads(4); };
    server_.set_tcp_nodelay(true);
    server_.set_payload_max_length(kMaxFuzzBody);
    server_.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      if (request.path.size() <= kMaxFuzzPath) return httplib::Server::HandlerResponse::Unhandled;
      response.status = 404;
      ClientConnection::close_after_answer();
      return httplib::Server::HandlerResponse::Handled;
    });
    server_.Post(".*", [](const httplib::Request&, httplib::Response& response, const httplib::ContentReader& read) {
      std::string body;
      read([&](const char* bytes, size_t size) {
        body.append(bytes, size);
        return body.size() <= kMaxFuzzBody;
      });
      must(body.size() <= 2 * kMaxFuzzBody, "a body is within its limit");
      response.set_content(body, "text/plain");
    });
    port_ = bind_and_listen(server_, "127.0.0.1", 0);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~EchoServer() {
    server_.stop();
    thread_.join();
  }

  // What comes back on a connection that sends `bytes` and nothing more.
  std::string answers(const std::string& bytes) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "the server takes connections");
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    must(sent == static_cast<ssize_t>(bytes.size()) || errno == EPIPE || errno == ECONNRESET, "the server reads");
    ::shutdown(fd, SHUT_WR);
    std::string out;
    char some[4096];
    for (ssize_t count = 0; (count = ::recv(fd, some, sizeof some, 0)) > 0;) out.append(some, size_t(count));
    ::close(fd);
    return out;
  }

 private:
  HttpServer server_{HttpTimeouts{}};
  int port_ = 0;
  std::thread thread_;
};

void http_request(const std::string& bytes) {
  static const EchoServer server;
  const std::string answers = server.answers(bytes);
  must(answers.empty() || answers.starts_with("HTTP/1.1 "), "an answer is HTTP");
}

constexpr test_support::FuzzTarget kHttpFuzz[] = {{"http_request", http_request}};

}  // namespace
}  // namespace hotswap

HOTSWAP_FUZZ_TARGETS(http, kHttpFuzz)
