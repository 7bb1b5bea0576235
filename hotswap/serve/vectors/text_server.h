// The server of a model of texts: /v1/embeddings or /v1/rerank, /v1/models, /health, /tokenize.
//
//   serve::TextServer server(std::move(texts), {.port = 8000});
//   server.start();
#pragma once

#include <chrono>
#include <memory>

#include "hotswap/serve/server.h"
#include "hotswap/serve/vectors/served_texts.h"

namespace hotswap::serve {

class TextServer {
 public:
  // Of the options those of connections; engine.max_queue is how many texts may wait.
  TextServer(ServedTexts model, const ServerOptions& options);
  ~TextServer();
  TextServer(const TextServer&) = delete;
  TextServer& operator=(const TextServer&) = delete;

  void start();  // returns when the port is open. Error when it cannot be had
  // Takes no new work and lets what runs end, for as long as `limit`. -> whether all ended
  bool drain(std::chrono::milliseconds limit);
  void stop();
  std::string url() const;
  bool healthy() const { return true; }  // a request that fails harms no other

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotswap::serve
