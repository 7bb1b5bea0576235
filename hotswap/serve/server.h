// An OpenAI-compatible server of one model: /v1/chat/completions, /v1/completions, /v1/models and what belongs to it.
//
//   serve::Server server(std::move(model), {.port = 8000});
//   server.start();                   // answers from threads of its own
//   server.drain(std::chrono::seconds(30));
//   server.stop();
//
// A thread a connection reads requests and writes answers; one further thread runs the model (engine_loop.h).
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hotswap/serve/engine_loop.h"
#include "hotswap/serve/served_model.h"

namespace hotswap::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;                            // 0: any free one
  std::vector<std::string> api_keys = {};  // a client must send one of them; empty: no key is needed
  // Names of this server beyond those of the loopback, without a port, as a proxy or a browser sends them in Host and
  // Origin.
  std::vector<std::string> allowed_hosts = {};
  bool strict_fields = false;  // a request's field that nothing knows is an error
  int connections = 10000;     // at once, a thread each
  size_t max_body = 8 << 20;   // bytes
  std::string metrics_prefix = "hotswap";
  std::string version = {};  // what /version reports
  EngineOptions engine = {};
};

class Server {
 public:
  Server(ServedModel model, const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start();  // returns when the port is open. Error when it cannot be had
  // Takes no new work and lets what runs end, for as long as `limit`. -> whether all ended
  bool drain(std::chrono::milliseconds limit);
  void stop();  // ends what still runs with an error
  std::string url() const;
  bool healthy() const;
  EngineLoop& engine();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotswap::serve
