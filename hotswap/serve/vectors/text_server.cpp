#include "hotswap/serve/vectors/text_server.h"

#include <atomic>
#include <ctime>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "hotswap/base/log.h"
#include "hotswap/http/connection_threads.h"
#include "hotswap/http/http_server.h"
#include "hotswap/http/listen.h"
#include "hotswap/serve/access.h"
#include "hotswap/serve/refusals.h"
#include "hotswap/serve/vectors/model_thread.h"
#include "hotswap/serve/vectors/text_requests.h"

namespace hotswap::serve {
namespace {

using TextHandled = httplib::Server::HandlerResponse;

}  // namespace

struct TextServer::Impl {
  using Answer = std::function<std::string(const std::string& body)>;
  struct Post {
    bool runs_model;  // refused while the server drains
    Answer answer;
  };

  const ServerOptions options;
  const ServedTexts model;
  const AccessRules access;
  ModelThread runs;
  std::map<std::string, Answer> gets;
  std::map<std::string, Post> posts;
  std::atomic<int64_t> active = 0;
  std::atomic<bool> draining = false;
  std::mutex unknown_mutex;
  std::set<std::string> unknown_fields;  // that were logged
  const int64_t created = std::time(nullptr);
  HttpServer http{HttpTimeouts{}};
  std::thread thread;
  int port = 0;

  Impl(ServedTexts served, const ServerOptions& o)
      : options(o),
        model(std::move(served)),
        access{.loopback = is_loopback(o.host), .hosts = o.allowed_hosts, .api_keys = o.api_keys},
        runs(model, static_cast<size_t>(o.engine.max_queue)) {
    add_routes();
    set_up_http();
  }

  void add_routes() {
    const Answer health = [](const std::string&) { return dump({{"status", "ok"}}); };
    gets["/health"] = health;
    gets["/ready"] = [this, health](const std::string& body) {
      if (draining) throw server_ends();
      return health(body);
    };
    gets["/version"] = [this](const std::string&) { return dump({{"version", options.version}}); };
    gets["/v1/models"] = [this](const std::string&) {
      OutJson all = OutJson::array();
      for (const std::string& name : model.names) all.push_back(model_json(name));
      return dump({{"object", "list"}, {"data", std::move(all)}});
    };
    posts["/v1/embeddings"] = {true, [this](const std::string& body) { return embed(body); }};
    for (const char* path : {"/v1/rerank", "/rerank"}) {
      posts[path] = {true, [this](const std::string& body) { return rerank(body); }};
    }
    posts["/tokenize"] = {false, [this](const std::string& body) { return tokenize(body); }};
    for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses"}) {
      posts[path] = {false, [](const std::string&) -> std::string {
                       throw ApiError(501, {"a model that generates text", "one that reads it",
                                            "serve such a model beside this one: docs/serving.md"});
                     }};
    }
  }

  OutJson model_json(const std::string& name) const {
    const KernelReport& kernels = model.model().kernel_report();
    OutJson json = {{"id", name},
                    {"object", "model"},
                    {"created", created},
                    {"owned_by", "hotswap"},
                    {"root", model.names.front()},
                    {"max_model_len", model.max_tokens()},
                    {"kernels", cat(kernels.bound(), " of ", kernels.rows.size(), " layers")}};
    if (!model.encoder) return json;
    json["dimensions"] = model.encoder->dimensions();
    json["prompts"] = OutJson::array();
    for (const auto& [prompt, text] : model.encoder->prompts()) json["prompts"].push_back(prompt);
    return json;
  }

  void need_encoder() const {
    if (model.encoder) return;
    throw ApiError(501, {"a model that makes embeddings", "a reranker", "use /v1/rerank, or serve another model"});
  }

  std::string embed(const std::string& body) {
    need_encoder();
    const EmbeddingRequest request = read_embedding_request(body, model);
    note_unknown(request.unknown);
    return embedding_answer(request, runs.vectors(request.ids, request.arguments), model);
  }

  std::string rerank(const std::string& body) {
    if (!model.reranker) {
      throw ApiError(501, {"a reranker (ForSequenceClassification with one label)", "a model of embeddings",
                           "use /v1/embeddings, or serve another model"});
    }
    const RerankRequest request = read_rerank_request(body, model);
    note_unknown(request.unknown);
    return rerank_answer(request, runs.scores(request.query, request.documents));
  }

  std::string tokenize(const std::string& text) {
    need_encoder();
    const EmbeddingRequest request = read_embedding_request(text, model);
    OutJson tokens = OutJson::array();
    int64_t count = 0;
    for (const auto& ids : request.ids) {
      count += static_cast<int64_t>(ids.size());
      tokens.push_back(ids);
    }
    return dump({{"tokens", std::move(tokens)}, {"count", count}, {"max_model_len", model.max_tokens()}});
  }

  void note_unknown(const std::vector<std::string>& fields) {
    if (fields.empty()) return;
    if (options.strict_fields) {
      refuse_unknown_field(fields.front());
    }
    const std::lock_guard lock(unknown_mutex);
    for (const std::string& field : fields) {
      if (unknown_fields.size() < 100 && unknown_fields.insert(field).second) {
        log_warning("serve: the field '", field.substr(0, 120), "' of a request is not known and was ignored");
      }
    }
  }

  void set_up_http() {
    http.new_task_queue = [this] { return new ConnectionThreads(static_cast<size_t>(options.connections)); };
    http.set_tcp_nodelay(true);
    http.set_payload_max_length(options.max_body);
    http.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      return before_body(request, response) ? TextHandled::Unhandled : TextHandled::Handled;
    });
    http.Post(".*", [this](const httplib::Request& request, httplib::Response& response,
                           const httplib::ContentReader& read) { answer_body(request, response, read); });
    http.set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.body.empty()) write_refusal(response, no_http_request(response.status));
    });
  }

  // Refuses what can be refused without the body and answers what has none. True where the body must be read.
  bool before_body(const httplib::Request& request, httplib::Response& response) {
    const_cast<httplib::Request&>(request).ranges.clear();
    response.set_header("X-Request-Id", random_id("req_"));
    return answered(response, [&] {
      check_origin(request, access);
      check_path_length(request);
      const bool is_open = request.path == "/health" && is_loopback(request.remote_addr);
      if (!is_open) check_key(request, access);
      if (request.method == "GET" || request.method == "HEAD") {
        const auto found = gets.find(request.path);
        if (found == gets.end()) no_path(request);
        response.status = 200;
        response.set_content(found->second({}), "application/json");
        return false;
      }
      const auto found = posts.find(request.path);
      if (request.method != "POST" || found == posts.end()) no_path(request);
      check_content_type(request);
      check_length(request, options.max_body);
      if (draining && found->second.runs_model) throw server_ends();
      return true;
    });
  }

  [[noreturn]] void no_path(const httplib::Request& request) const {
    refuse_path(request, gets.contains(request.path), posts.contains(request.path));
  }

  void answer_body(const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& read) {
    ++active;
    answered(response, [&] {
      std::string body;
      const bool whole = read([&](const char* bytes, size_t size) {
        body.append(bytes, size);
        return body.size() <= options.max_body;
      });
      if (body.size() > options.max_body || response.status == 413) {
        throw body_too_large(options.max_body);
      }
      if (!whole) throw body_incomplete();
      response.status = 200;
      response.set_content(posts.at(request.path).answer(body), "application/json");
      return true;
    });
    --active;
  }
};

TextServer::TextServer(ServedTexts model, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}

TextServer::~TextServer() { stop(); }

void TextServer::start() {
  impl_->port = bind_and_listen(impl_->http, impl_->options.host, impl_->options.port);
  impl_->thread = std::thread([this] { impl_->http.listen_after_bind(); });
  while (!impl_->http.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool TextServer::drain(std::chrono::milliseconds limit) {
  impl_->draining = true;
  const auto end = std::chrono::steady_clock::now() + limit;
  while (impl_->active > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return impl_->active == 0;
}

void TextServer::stop() {
  impl_->draining = true;
  impl_->runs.stop();
  impl_->http.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

std::string TextServer::url() const { return "http://" + address_of(impl_->options.host, impl_->port); }

}  // namespace hotswap::serve
