#include "hotswap/hub/serve/server.h"

#include <fcntl.h>
#include <httplib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "hotswap/base/log.h"
#include "hotswap/http/connection_threads.h"
#include "hotswap/http/listen.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/serve/hub_api.h"
#include "hotswap/hub/serve/trusted_proxies.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using Plain = nlohmann::ordered_json;

constexpr size_t kSendBytes = 64 << 10;  // each file on its way holds one
constexpr int64_t kSmallSend = 1 << 20;  // bytes; who sends more must leave threads to others
constexpr size_t kBody = 1 << 20;
constexpr size_t kPathWithBody = 1024;  // httplib finds the handler by a regular expression, which recurses

}  // namespace

struct HubServer::Impl {
  HubServer* server;
  const HubServerOptions& options;
  ServedRepos repos;
  HubApi api;
  const TrustedProxies proxies;
  std::unique_ptr<httplib::Server> http;
  std::atomic<uint64_t> count = 0;
  std::atomic<int> large_sends = 0;
  const uint64_t run_id = std::random_device{}();

  explicit Impl(HubServer* owner)
      : server(owner),
        options(owner->options_),
        repos(options.folder, options.large_from, options.rescan_s),
        api(repos, options.page),
        proxies(options.trusted_proxies) {
    if (options.certificate.empty()) {
      http = std::make_unique<httplib::Server>();
    } else {
      http = std::make_unique<httplib::SSLServer>(options.certificate.c_str(), options.key.c_str());
      if (!http->is_valid()) {
        throw Error({.kind = ErrorKind::kInvalidArgument,
                     .wanted = "a TLS certificate and its private key, as PEM files, of one pair",
                     .got = options.certificate.string() + " and " + options.key.string(),
                     .next = "check both, for example with openssl x509 -in and openssl pkey -in"});
      }
    }
    http->new_task_queue = [this] { return new ConnectionThreads(static_cast<size_t>(options.connections)); };
    http->set_tcp_nodelay(true);
    http->set_keep_alive_max_count(100000);
    http->set_keep_alive_timeout(2);
    http->set_write_timeout(30);
    http->set_payload_max_length(kBody);
    http->set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      // httplib's own cutting of ranges trusts their numbers; ours does not.
      auto& changed = const_cast<httplib::Request&>(request);
      changed.ranges.clear();
      // Caches before us hand on what the first client took, and brotli is nothing that all of them know.
      const bool gzip = request.get_header_value("Accept-Encoding").find("gzip") != std::string::npos;
      changed.headers.erase("Accept-Encoding");
      if (gzip) changed.headers.emplace("Accept-Encoding", "gzip");
      return handle(request, response) ? httplib::Server::HandlerResponse::Handled
                                       : httplib::Server::HandlerResponse::Unhandled;
    });
    http->Post(".*", [this](const httplib::Request& request, httplib::Response& response,
                            const httplib::ContentReader& read) { answer_body(request, response, read); });
  }

  // Answers what has no body, and refuses a body that nobody asked for; the other requests come to `answer_body`.
  bool handle(const httplib::Request& request, httplib::Response& response) {
    bool body_comes = false;
    guarded(request, response, [&] {
      const Target target = parse_target(request.target);
      body_comes = request.method == "POST" && takes_body(target) && request.path.size() <= kPathWithBody;
      if (body_comes) return;
      if (request.method != "GET" && request.method != "HEAD") {
        response.set_header("Connection", "close");  // its body was not read
        throw Refused{405, "", "this Hub is read-only"};
      }
      answer(request, response, target);
    });
    return !body_comes;
  }

  void answer_body(const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& read) {
    guarded(request, response, [&] {
      std::string body;
      const bool whole = read([&](const char* bytes, size_t size) {
        body.append(bytes, size);
        return body.size() <= kBody;
      });
      if (!whole) {
        response.set_header("Connection", "close");
        throw Refused{response.status == 413 || body.size() > kBody ? 413 : 400, "",
                      cat("expected a whole body of at most ", kBody, " bytes")};
      }
      answer(request, response, parse_target(request.target), body);
    });
  }

  // Whatever goes wrong becomes an answer in the Hub's form.
  void guarded(const httplib::Request& request, httplib::Response& response, const std::function<void()>& answers) {
    try {
      answers();
    } catch (const Refused& refused) {
      refuse(response, refused);
    } catch (const Error& error) {  // names that no repository or file can have
      refuse(response, {400, "", error.what()});
    } catch (const std::exception& error) {
      log_warning("serve-hub: ", request.target, ": ", error.what());
      refuse(response, {500, "", "internal error"});
    }
    if (response.status < 0) return;  // its body is still to come
    std::ostringstream id;
    id << std::hex << run_id << "-" << ++count;
    response.set_header("X-Request-Id", id.str());
    if (options.on_request) options.on_request(cat(request.method, " ", shown(request.target), " ", response.status));
  }

  static void refuse(httplib::Response& response, const Refused& refused) {
    response.status = refused.status;
    if (refused.status == 416) return response.set_header("Content-Range", refused.message);
    std::string message = shown(refused.message);  // a header is no place for line ends
    if (*refused.code != '\0') response.set_header("X-Error-Code", refused.code);
    response.set_header("X-Error-Message", message);
    response.set_content(Plain{{"error", message}}.dump(-1, ' ', true, Plain::error_handler_t::replace),
                         "application/json");
  }

  static void send_json(httplib::Response& response, const Plain& answer) {
    response.status = 200;
    response.set_header("Vary", "Accept-Encoding");
    response.set_content(answer.dump(-1, ' ', false, Plain::error_handler_t::replace), "application/json");
  }

  void check_token(const httplib::Request& request) const {
    if (options.token.empty()) return;
    const std::string given = request.get_header_value("Authorization");
    if (is_bearer(given, options.token)) return;
    if (given.empty()) throw Refused{401, "RepoNotFound", "Invalid username or password."};
    throw Refused{401, "", "Invalid credentials in Authorization header"};
  }

  void answer(const httplib::Request& request, httplib::Response& response, const Target& target,
              const std::string& body = "") {
    const std::vector<std::string>& parts = target.parts;
    if (parts.size() == 2 &&
        parts[0] == "cdn") {  // knowing a content's hash is the right to it, as with a signed address
      const auto file = repos.by_sha256(parts[1]);
      if (!file) throw Refused{404, "", "no such content"};
      return send_file(request, response, *file);
    }
    check_token(request);
    if (!parts.empty() && parts[0] == "api") {
      const ApiAnswer answer = api.answer({.target = target,
                                           .method = request.method,
                                           .address = own_address(request),
                                           .with_token = request.has_header("Authorization"),
                                           .body = body,
                                           .content_type = request.get_header_value("Content-Type")});
      if (!answer.next.empty()) response.set_header("Link", "<" + answer.next + ">; rel=\"next\"");
      return send_json(response, answer.json);
    }
    const auto type = parts.empty() ? std::nullopt : type_named(parts[0]);
    const size_t at = type && *type != RepoType::kModel ? 1 : 0;
    if (parts.size() >= at + 5 && parts[at + 2] == "resolve") {
      const Repo repo{at == 1 ? *type : RepoType::kModel, parts[at] + "/" + parts[at + 1]};
      return resolve(request, response, repo, parts[at + 3], target.joined(at + 4));
    }
    throw Refused{404, "", "no such page"};
  }

  // The request's address without its query, as the client sees it: behind a proxy that is trusted, as that one says.
  std::string own_address(const httplib::Request& request) const {
    const bool trusted = proxies.has(request.remote_addr);
    const auto forwarded = [&](const char* name, const std::string& otherwise) {
      if (!trusted) return otherwise;
      const std::string all = request.get_header_value(name);  // by the outermost proxy, by the next one, ...
      const std::string first(trim(std::string_view(all).substr(0, all.find(','))));
      return first.empty() || first.find_first_of("<>\"") != std::string::npos ? otherwise : shown(first);
    };
    std::string prefix = forwarded("X-Forwarded-Prefix", "");
    while (!prefix.empty() && prefix.back() == '/') prefix.pop_back();
    return cat(forwarded("X-Forwarded-Proto", options.certificate.empty() ? "http" : "https"), "://",
               forwarded("X-Forwarded-Host", shown(request.get_header_value("Host"))), prefix,
               request.target.substr(0, request.target.find('?')));
  }

  void resolve(const httplib::Request& request, httplib::Response& response, const Repo& repo, const std::string& name,
               const std::string& path) {
    const auto revision = api.revision_of(repo, name);
    response.set_header("X-Repo-Commit", revision->commit);
    const auto found = revision->files.find(path);
    if (found == revision->files.end()) throw Refused{404, "EntryNotFound", "Entry not found"};
    const ServedFile& file = found->second;
    if (file.large) {
      response.set_header("X-Linked-Etag", "\"" + file.sha256 + "\"");
      response.set_header("X-Linked-Size", std::to_string(file.size));
    }
    if (file.large && !options.large_at.empty()) {
      response.status = 302;
      return response.set_header("Location", options.large_at + "/cdn/" + file.sha256);
    }
    send_file(request, response, file);
  }

  void send_file(const httplib::Request& request, httplib::Response& response, const ServedFile& file) {
    response.set_header("ETag", "\"" + file.etag() + "\"");
    response.set_header("Accept-Ranges", "bytes");
    if (names_etag(request.get_header_value("If-None-Match"), file.etag())) {
      response.status = 304;
      return;
    }
    const std::string only_of = request.get_header_value("If-Range");  // a range of another content is of no use
    const bool same = only_of.empty() || only_of == cat('"', file.etag(), '"');
    const ByteRange bytes = range_of(same ? request.get_header_value("Range") : "", file.size);
    const std::shared_ptr<int> fd(new int(::open(file.disk.c_str(), O_RDONLY | O_CLOEXEC)), [](int* open) {
      if (*open >= 0) ::close(*open);
      delete open;
    });
    struct stat info {};
    if (*fd < 0 || ::fstat(*fd, &info) != 0 || info.st_size != file.size)
      throw Refused{503, "", "the file is changing"};
    response.status = bytes.partial ? 206 : 200;
    if (bytes.partial)
      response.set_header("Content-Range", cat("bytes ", bytes.first, "-", bytes.last, "/", file.size));
    const int64_t size = bytes.last - bytes.first + 1;
    if (size <= 0) return response.set_header("Content-Type", "application/octet-stream");
    const std::shared_ptr<void> place = size > kSmallSend && request.method == "GET" ? large_send(response) : nullptr;
    response.set_content_provider(static_cast<size_t>(size), "application/octet-stream",
                                  [this, fd, place, first = bytes.first, buffer = std::string()](
                                      size_t offset, size_t length, httplib::DataSink& sink) mutable {
                                    buffer.resize(kSendBytes);
                                    const ssize_t n = ::pread(*fd, buffer.data(), std::min(length, buffer.size()),
                                                              static_cast<off_t>(static_cast<size_t>(first) + offset));
                                    if (n <= 0) return false;
                                    server->bytes_sent_ += n;  // before: who has read the last byte may look at it
                                    return sink.write(buffer.data(), static_cast<size_t>(n));
                                  });
  }

  // The right to send a large file, as long as the result lives. A quarter of the threads stays for small answers.
  std::shared_ptr<void> large_send(httplib::Response& response) {
    std::shared_ptr<void> place(nullptr, [this](void*) { --large_sends; });
    if (++large_sends <= options.connections - options.connections / 4) return place;
    response.set_header("Retry-After", "5");
    throw Refused{503, "", "too many large files on their way"};
  }
};

HubServer::HubServer(HubServerOptions options) : options_(std::move(options)), impl_(std::make_unique<Impl>(this)) {}

HubServer::~HubServer() { stop(); }

std::string HubServer::url() const {
  return (options_.certificate.empty() ? "http://" : "https://") + address_of(options_.host, port_);
}

void HubServer::bind() { port_ = bind_and_listen(*impl_->http, options_.host, options_.port); }

void HubServer::start() {
  bind();
  thread_ = std::thread([this] { impl_->http->listen_after_bind(); });
  while (!impl_->http->is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void HubServer::run() {
  if (port_ == 0) bind();
  impl_->http->listen_after_bind();
}

void HubServer::stop() {
  impl_->http->stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace hotswap
