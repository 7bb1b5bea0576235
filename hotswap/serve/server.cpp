#include "hotswap/serve/server.h"

#include <ctime>
#include <set>

#include "hotswap/base/log.h"
#include "hotswap/http/connection_threads.h"
#include "hotswap/http/http_server.h"
#include "hotswap/http/listen.h"
#include "hotswap/serve/access.h"
#include "hotswap/serve/page.h"
#include "hotswap/serve/refusals.h"
#include "hotswap/serve/responses_events.h"
#include "hotswap/serve/running_answers.h"

namespace hotswap::serve {
namespace {

using httplib::Request;
using httplib::Response;
using Handled = httplib::Server::HandlerResponse;

constexpr auto kEndOfStreams = std::chrono::seconds(2);

enum class Need { kKey, kKeyUnlessLocal, kNothing };

void send(Response& response, const OutJson& json) { response.set_content(dump(json), "application/json"); }

// Counts what is being answered, also while it streams.
class Active {
 public:
  explicit Active(std::atomic<int64_t>& count) : count_(count) { ++count_; }
  ~Active() { --count_; }
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

 private:
  std::atomic<int64_t>& count_;
};

}  // namespace

struct Server::Impl {
  using Get = std::function<void(const Request&, Response&)>;
  using Post = std::function<void(const Request&, const std::string& body, Response&)>;
  struct GetRoute {
    Need need;
    Get answer;
  };
  struct PostRoute {
    bool generates;  // takes part in the engine's work: refused while the server drains
    Post answer;
  };

  const ServerOptions options;
  ServedModel model;
  AccessRules access;
  Metrics metrics;
  std::atomic<int64_t> active = 0;
  std::atomic<bool> draining = false;
  EngineLoop engine;
  HttpServer http{HttpTimeouts{}};
  std::map<std::string, GetRoute> gets;
  std::map<std::string, PostRoute> posts;
  std::mutex unknown_mutex;
  std::set<std::string> unknown_fields;  // that were logged
  const int64_t created = std::time(nullptr);
  std::thread thread;
  int port = 0;

  Impl(ServedModel served, const ServerOptions& o)
      : options(o),
        model(with_grammars(std::move(served))),
        access{.loopback = is_loopback(o.host), .hosts = o.allowed_hosts, .api_keys = o.api_keys},
        engine(*model.model, engine_options(o, model), metrics) {
    add_gets();
    add_posts();
    set_up_http();
  }

  static ServedModel with_grammars(ServedModel served) {
    served.grammars = std::make_shared<GrammarCompiler>(served.tokenizer, served.vocab(), served.ends(),
                                                        marker_tokens(served.tokenizer));
    return served;
  }

  static EngineOptions engine_options(const ServerOptions& o, const ServedModel& model) {
    EngineOptions engine = o.engine;
    engine.max_model_len = model.max_model_len;
    return engine;
  }

  void set_up_http() {
    http.new_task_queue = [this] { return new ConnectionThreads(static_cast<size_t>(options.connections)); };
    http.set_tcp_nodelay(true);
    http.set_payload_max_length(options.max_body);
    http.set_pre_routing_handler([this](const Request& request, Response& response) {
      return before_body(request, response) ? Handled::Unhandled : Handled::Handled;
    });
    http.Post(".*", [this](const Request& request, Response& response, const httplib::ContentReader& read) {
      answer_body(request, response, read);
    });
    // What httplib refuses by itself: a line that is no request, for example.
    http.set_error_handler([](const Request&, Response& response) {
      if (response.body.empty()) write_refusal(response, no_http_request(response.status));
    });
  }

  // Refuses what can be refused without the body and answers what has none. True where the body must be read.
  bool before_body(const Request& request, Response& response) {
    auto& changed = const_cast<Request&>(request);
    changed.ranges.clear();
    changed.headers.erase("Accept-Encoding");  // a stream that is compressed is held back
    const std::string id = request.get_header_value("X-Request-Id");
    const bool usable =
        !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 127; });
    response.set_header("X-Request-Id", usable ? id : random_id("req_"));
    return answered(response, [&] {
      check_origin(request, access);
      check_path_length(request);
      const bool reads = request.method == "GET" || request.method == "HEAD";
      if (reads) {
        answer_get(request, response);
        return false;
      }
      check_post(request);
      return true;
    });
  }

  void answer_get(const Request& request, Response& response) {
    const std::string one = "/v1/models/";
    const auto found = gets.find(request.path);
    if (found == gets.end() && !request.path.starts_with(one)) no_path(request);
    const Need need = found != gets.end() ? found->second.need : Need::kKey;
    const bool open = need == Need::kNothing || (need == Need::kKeyUnlessLocal && is_loopback(request.remote_addr));
    if (!open) check_key(request, access);
    response.status = 200;
    if (found != gets.end()) return found->second.answer(request, response);
    const std::string name = request.path.substr(one.size());
    const auto named = model.find(name);
    if (!named) {
      throw ApiError(404, cat("The model '", shown_name(name), "' does not exist"), "model", "model_not_found");
    }
    send(response, model_json(*named));
  }

  static std::string shown_name(const std::string& name) { return name.substr(0, 120); }

  void check_post(const Request& request) {
    const auto found = posts.find(request.path);
    if (request.method != "POST" || found == posts.end()) no_path(request);
    check_key(request, access);
    check_content_type(request);
    check_length(request, options.max_body);
    if (draining && found->second.generates) throw server_ends();
  }

  [[noreturn]] void no_path(const Request& request) const {
    refuse_path(request, gets.contains(request.path), posts.contains(request.path));
  }

  void answer_body(const Request& request, Response& response, const httplib::ContentReader& read) {
    answered(response, [&] {
      std::string body;
      const bool whole = read([&](const char* bytes, size_t size) {
        body.append(bytes, size);
        return body.size() <= options.max_body;
      });
      const bool too_large = response.status == 413 || body.size() > options.max_body;
      if (!whole) throw too_large ? body_too_large(options.max_body) : body_incomplete();
      response.status = 200;
      posts.at(request.path).answer(request, body, response);
      return true;
    });
  }

  void add_gets() {
    const auto health = [this](const Request&, Response& response) {
      if (!engine.healthy()) {
        throw ApiError(503, {"an engine that runs", "one that has failed", "start the server again; its log has why"});
      }
      send(response, {{"status", "ok"}});
    };
    const auto ready = [this, health](const Request& request, Response& response) {
      if (draining) throw server_ends();
      health(request, response);
    };
    gets["/health"] = {Need::kKeyUnlessLocal, health};
    gets["/ready"] = {Need::kKeyUnlessLocal, ready};
    gets["/metrics"] = {Need::kKeyUnlessLocal, [this](const Request&, Response& response) {
                          response.set_content(
                              metrics.text(options.metrics_prefix, model.names.front(), engine.gauges()),
                              "text/plain; version=0.0.4");
                        }};
    gets["/"] = {Need::kNothing, [](const Request&, Response& response) {  // the page prompts for the key
                   const std::string nonce = random_id("");
                   response.set_header("Content-Security-Policy", page_policy(nonce));
                   response.set_header("X-Content-Type-Options", "nosniff");
                   response.set_content(chat_page(nonce), "text/html; charset=utf-8");
                 }};
    gets["/version"] = {Need::kKey, [this](const Request&, Response& response) {
                          send(response, {{"version", options.version}});
                        }};
    gets["/v1/models"] = {Need::kKey, [this](const Request&, Response& response) {
                            OutJson all = OutJson::array();
                            for (const std::string& name : model.all_names()) {
                              all.push_back(model_json(*model.find(name)));
                            }
                            send(response, {{"object", "list"}, {"data", std::move(all)}});
                          }};
  }

  OutJson model_json(const ServedModel::Named& named) const {
    const KernelReport& kernels = model.model->kernel_report();
    const bool is_base = named.adapter < 0;
    return {{"id", named.name},
            {"object", "model"},
            {"created", created},
            {"owned_by", "hotswap"},
            {"root", is_base ? model.names.front() : model.adapters[named.adapter].root},
            {"parent", is_base ? OutJson(nullptr) : OutJson(model.names.front())},
            {"max_model_len", model.max_model_len},
            {"kernels", cat(kernels.bound(), " of ", kernels.rows.size(), " layers")},
            {"generation_config", to_json(model.model->generation_config())}};
  }

  void add_posts() {
    posts["/v1/chat/completions"] = {true, [this](const Request& from, const std::string& body, Response& response) {
                                       generate(from, read_chat_request(body, model), response);
                                     }};
    posts["/v1/completions"] = {true, [this](const Request& from, const std::string& body, Response& response) {
                                  generate(from, read_completion_request(body, model), response);
                                }};
    posts["/tokenize"] = {
        false, [this](const Request&, const std::string& body, Response& response) { tokenize(body, response); }};
    posts["/detokenize"] = {
        false, [this](const Request&, const std::string& body, Response& response) { detokenize(body, response); }};
    posts["/apply_template"] = {false, [this](const Request&, const std::string& text, Response& response) {
                                  RequestBody body(text);
                                  named_model(body, model);
                                  send(response, {{"prompt", render_chat(body, model).text}});
                                }};
    posts["/v1/responses"] = {true, [this](const Request& from, const std::string& body, Response& response) {
                                respond(from, read_responses_request(body, model), response);
                              }};
    for (const char* path : {"/v1/embeddings", "/v1/rerank", "/rerank"}) {
      posts[path] = {false, [](const Request&, const std::string&, Response&) {
                       throw ApiError(501, {"a model that reads texts to embed or rank them", "one that generates text",
                                            "serve such a model beside this one: docs/embeddings.md"});
                     }};
    }
  }

  using Left = std::function<bool()>;

  void generate(const Request& from, GenerationRequest request, Response& response) {
    prepare(from, request);
    if (request.stream) return stream(from, request, chunk_events(model, request), response);
    answer_whole(response, [&](const Left& left) { return whole_answer(model, engine, request, left); });
  }

  void respond(const Request& from, ResponsesRequest request, Response& response) {
    prepare(from, request.generation);
    if (request.generation.stream) {
      auto events = std::make_unique<ResponsesEvents>(request.settings, request.generation.model.name);
      return stream(from, request.generation, std::move(events), response);
    }
    answer_whole(response, [&](const Left& left) { return whole_response(model, engine, request, left); });
  }

  void prepare(const Request& from, GenerationRequest& request) {
    note_unknown(request.unknown);
    // How fast an answer begins shows what others have sent: keys of prompts are not shared between clients' keys.
    if (!access.api_keys.empty()) request.cache_salt.insert(0, from.get_header_value("Authorization") + "\n");
    if (request.rules) compile(request);
  }

  void answer_whole(Response& response, const std::function<std::string(const Left&)>& make) {
    const Active running(active);
    const ClientConnection client = ClientConnection::current();
    const std::string answer = make([client] { return client.has_left(); });
    if (answer.empty()) {
      throw ApiError(400, {"a connection open in both directions until the answer", "one that was closed",
                           "keep it open, or stream the answer"});
    }
    response.set_content(answer, "application/json");
  }

  void stream(const Request& from, const GenerationRequest& request, std::unique_ptr<AnswerEvents> events,
              Response& response) {
    const auto running = std::make_shared<Active>(active);
    const ClientConnection client = ClientConnection::current();
    const auto stream = std::make_shared<AnswerStream>(model, engine, request, std::move(events));
    response.set_header("Cache-Control", "no-cache");
    response.set_header("X-Accel-Buffering", "no");
    const auto next = [stream, running, client](size_t, httplib::DataSink& sink) {
      const auto write = [&](const std::string& text) { return sink.write(text.data(), text.size()); };
      if (!stream->next(write, [&] { return client.has_left(); })) return false;
      if (stream->ended()) sink.done();
      return true;
    };
    if (from.version != "HTTP/1.0") return response.set_chunked_content_provider("text/event-stream", next);
    // It knows no chunks: the answer ends with its connection.
    ClientConnection::close_after_answer();
    response.set_header("Connection", "close");
    response.set_content_provider("text/event-stream", next);
  }

  void compile(GenerationRequest& request) {
    try {
      request.constraint = model.grammars->compile(request.rules->ebnf);
    } catch (const ApiError& error) {
      throw ApiError(error.status, error.what(), request.rules->field, error.code);
    }
  }

  void note_unknown(const std::vector<std::string>& fields) {
    if (fields.empty()) return;
    if (options.strict_fields) {
      refuse_unknown_field(fields.front());
    }
    const std::lock_guard lock(unknown_mutex);
    for (const std::string& field : fields) {
      if (unknown_fields.size() < 100 && unknown_fields.insert(field).second) {
        log_warning("serve: the field '", shown_name(field), "' of a request is not known and was ignored");
      }
    }
  }

  void tokenize(const std::string& text, Response& response) {
    RequestBody body(text);
    named_model(body, model);
    std::vector<int64_t> ids;
    if (body.json("messages")) {
      if (body.json("prompt")) bad_request({"prompt or messages", "both", "leave one of them out", "prompt"});
      ids = model.tokenizer.ids(render_chat(body, model).text, body.flag("add_special_tokens"));
    } else {
      auto prompts = read_prompts(body, "prompt", model);
      if (prompts.size() != 1) bad_request({"one prompt", cat(prompts.size()), "send a request for each", "prompt"});
      ids = std::move(prompts[0]);
    }
    send(response, {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model.max_model_len}});
  }

  void detokenize(const std::string& text, Response& response) {
    RequestBody body(text);
    named_model(body, model);
    const auto tokens = body.json("tokens");
    if (!tokens) bad_request({"tokens as a list of ids", "none", "send {\"tokens\": [ids]}", "tokens"});
    send(response, {{"prompt", body.guarded("tokens", [&] {
                       return model.tokenizer.decode(checked_ids(*tokens, "tokens", model.vocab()));
                     })}});
  }

  bool wait_until_quiet(std::chrono::milliseconds limit) {
    const auto end = Clock::now() + limit;
    const auto quiet = [&] { return active == 0 && engine.idle(); };
    while (!quiet() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return quiet();
  }
};

Server::Server(ServedModel model, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}

Server::~Server() { stop(); }

void Server::start() {
  impl_->port = bind_and_listen(impl_->http, impl_->options.host, impl_->options.port);
  impl_->thread = std::thread([this] { impl_->http.listen_after_bind(); });
  while (!impl_->http.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool Server::drain(std::chrono::milliseconds limit) {
  impl_->draining = true;
  return impl_->wait_until_quiet(limit);
}

void Server::stop() {
  impl_->draining = true;
  impl_->engine.stop();
  impl_->wait_until_quiet(kEndOfStreams);
  impl_->http.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

std::string Server::url() const { return "http://" + address_of(impl_->options.host, impl_->port); }

bool Server::healthy() const { return impl_->engine.healthy(); }

EngineLoop& Server::engine() { return impl_->engine; }

}  // namespace hotswap::serve
