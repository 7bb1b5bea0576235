#include "hotswap/hub/serve/server.h"

#include <fcntl.h>
#include <httplib.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <random>

#include "hotswap/base/log.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/net/url.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using Plain = nlohmann::ordered_json;

constexpr size_t kThreads = 64;  // a kept-alive connection holds one
constexpr size_t kBuffer = 256 << 10;

// A refusal in the Hub's form.
struct Refused {
  int status;
  const char* code;
  std::string message;
};

int hex_value(char c) {
  return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1,
              low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) throw Refused{400, "", "a broken percent escape in the path"};
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

struct Target {
  std::vector<std::string> parts;  // of the path, decoded each for itself: "%2F" in a revision stays inside it
  std::map<std::string, std::string> query;
};

Target parse_target(const std::string& text) {
  Target target;
  const size_t mark = std::min(text.find('?'), text.size());
  for (const std::string& part : split(std::string_view(text).substr(0, mark), '/'))
    target.parts.push_back(decoded(part));
  target.parts.erase(target.parts.begin());  // before the first slash
  for (const std::string& pair : split(std::string_view(text).substr(std::min(mark + 1, text.size())), '&')) {
    const size_t equals = std::min(pair.find('='), pair.size());
    target.query[decoded(std::string_view(pair).substr(0, equals))] =
        equals < pair.size() ? decoded(pair.substr(equals + 1)) : "";
  }
  return target;
}

std::optional<RepoType> type_named(const std::string& name) {
  for (const RepoType type : {RepoType::kModel, RepoType::kDataset, RepoType::kSpace, RepoType::kKernel}) {
    if (name == plural(type)) return type;
  }
  return std::nullopt;
}

std::string joined(const std::vector<std::string>& parts, size_t from) {
  return join(
      std::vector<std::string>(parts.begin() + static_cast<ptrdiff_t>(std::min(from, parts.size())), parts.end()), "/");
}

struct Bytes {
  int64_t first = 0, last = -1;  // last < first: nothing
  bool partial = false;
};

// One range is honoured; several, or what is no range, mean the whole file, as the standard allows.
Bytes range_of(const std::string& header, int64_t size) {
  Bytes whole{.first = 0, .last = size - 1};
  if (header.rfind("bytes=", 0) != 0 || header.find(',') != std::string::npos) return whole;
  const std::string_view spec = std::string_view(header).substr(6);
  const size_t dash = spec.find('-');
  if (dash == std::string_view::npos) return whole;
  const auto number = [](std::string_view digits, int64_t& value) {
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return !digits.empty() && code == std::errc() && end == digits.data() + digits.size() && value >= 0;
  };
  Bytes some{.partial = true};
  if (dash == 0) {  // the last N bytes
    int64_t count = 0;
    if (!number(spec.substr(1), count)) return whole;
    some.first = std::max<int64_t>(0, size - count);
    some.last = size - 1;
    if (count == 0) some.first = size;
  } else {
    if (!number(spec.substr(0, dash), some.first)) return whole;
    some.last = size - 1;
    if (dash + 1 < spec.size() && !number(spec.substr(dash + 1), some.last)) return whole;
    some.last = std::min(some.last, size - 1);
  }
  if (some.first >= size || some.last < some.first) throw Refused{416, "", cat("bytes */", size)};
  return some;
}

}  // namespace

struct HubServer::Impl {
  HubServer* server;
  const HubServerOptions& options;
  ServedRepos repos;
  std::unique_ptr<httplib::Server> http;
  std::atomic<uint64_t> count = 0;
  const uint64_t run_id = std::random_device{}();

  explicit Impl(HubServer* owner)
      : server(owner), options(owner->options_), repos(options.folder, options.large_from, options.rescan_s) {
    if (options.certificate.empty()) {
      http = std::make_unique<httplib::Server>();
    } else {
      http = std::make_unique<httplib::SSLServer>(options.certificate.c_str(), options.key.c_str());
      if (!http->is_valid()) {
        throw Error({.wanted = "a certificate and its key as PEM files",
                     .got = options.certificate.string() + " and " + options.key.string(),
                     .next = "check both files"});
      }
    }
    http->new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    http->set_tcp_nodelay(true);
    http->set_keep_alive_max_count(100000);
    http->set_keep_alive_timeout(2);
    http->set_write_timeout(30);
    http->set_payload_max_length(0);
    http->set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      handle(request, response);
      return httplib::Server::HandlerResponse::Handled;
    });
  }

  void handle(const httplib::Request& request, httplib::Response& response) {
    // httplib's own cutting of ranges trusts their numbers; ours does not.
    const_cast<httplib::Request&>(request).ranges.clear();
    response.set_header("X-Request-Id", cat(std::hex, run_id, "-", ++count));
    try {
      answer(request, response);
    } catch (const Refused& refused) {
      refuse(response, refused);
    } catch (const Error& error) {  // names that no repository or file can have
      refuse(response, {400, "", error.what()});
    } catch (const std::exception& error) {
      log_warning("serve-hub: ", request.target, ": ", error.what());
      refuse(response, {500, "", "internal error"});
    }
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
    response.set_content(answer.dump(-1, ' ', false, Plain::error_handler_t::replace), "application/json");
  }

  void check_token(const httplib::Request& request) const {
    if (options.token.empty()) return;
    const std::string given = request.get_header_value("Authorization"), wanted = "Bearer " + options.token;
    if (given.size() == wanted.size() && CRYPTO_memcmp(given.data(), wanted.data(), wanted.size()) == 0) return;
    if (given.empty()) throw Refused{401, "RepoNotFound", "Invalid username or password."};
    throw Refused{401, "", "Invalid credentials in Authorization header"};
  }

  void answer(const httplib::Request& request, httplib::Response& response) {
    if (request.method != "GET" && request.method != "HEAD") {
      response.set_header("Connection", "close");  // its body was not read
      throw Refused{405, "", "this Hub is read-only"};
    }
    const Target target = parse_target(request.target);
    const std::vector<std::string>& parts = target.parts;
    if (parts.size() == 2 &&
        parts[0] == "cdn") {  // knowing a content's hash is the right to it, as with a signed address
      const auto file = repos.by_sha256(parts[1]);
      if (!file) throw Refused{404, "", "no such content"};
      return send_file(request, response, *file);
    }
    check_token(request);
    if (parts.size() == 4 && parts[0] == "api" && parts[1] == "organizations" && parts[3] == "overview") {
      return send_publisher(response, parts[2]);
    }
    if (parts.size() >= 4 && parts[0] == "api") {
      if (const auto type = type_named(parts[1]))
        return answer_api(request, response, target, {*type, parts[2] + "/" + parts[3]});
    }
    const auto type = parts.empty() ? std::nullopt : type_named(parts[0]);
    const size_t at = type && *type != RepoType::kModel ? 1 : 0;
    if (parts.size() >= at + 5 && parts[at + 2] == "resolve") {
      const Repo repo{at == 1 ? *type : RepoType::kModel, parts[at] + "/" + parts[at + 1]};
      return resolve(request, response, repo, parts[at + 3], joined(parts, at + 4));
    }
    throw Refused{404, "", "no such page"};
  }

  std::shared_ptr<const ServedRevision> revision_of(const Repo& repo, const std::string& name) {
    if (repos.revisions(repo).empty()) throw Refused{404, "RepoNotFound", "Repository not found"};
    auto revision = repos.find(repo, name);
    if (!revision) throw Refused{404, "RevisionNotFound", "Invalid rev id: " + name};
    return revision;
  }

  void answer_api(const httplib::Request& request, httplib::Response& response, const Target& target,
                  const Repo& repo) {
    const std::vector<std::string>& parts = target.parts;
    const std::string verb = parts.size() > 4 ? parts[4] : "revision";
    if (verb == "refs" && parts.size() == 5) return send_refs(response, repo);
    if (verb == "revision" && parts.size() <= 6)
      return send_revision(response, repo, parts.size() > 5 ? parts[5] : "main");
    if (verb == "tree" && parts.size() >= 6) return send_tree(request, response, target, repo);
    throw Refused{404, "", "no such page"};
  }

  void send_publisher(httplib::Response& response, const std::string& name) {
    check_repo({.id = name});
    if (!repos.has_publisher(name)) throw Refused{404, "", "Organization not found"};
    send_json(response, {{"name", name}, {"fullname", name}, {"trustedKernelPublisher", repos.trusts(name)}});
  }

  void send_refs(httplib::Response& response, const Repo& repo) {
    Plain answer = {{"branches", Plain::array()}, {"tags", Plain::array()}, {"converts", Plain::array()}};
    const auto revisions = repos.revisions(repo);
    if (revisions.empty()) throw Refused{404, "RepoNotFound", "Repository not found"};
    for (const auto& revision : revisions) {
      answer[revision->tag ? "tags" : "branches"].push_back(
          {{"name", revision->name},
           {"ref", (revision->tag ? "refs/tags/" : "refs/heads/") + revision->name},
           {"targetCommit", revision->commit}});
    }
    send_json(response, answer);
  }

  void send_revision(httplib::Response& response, const Repo& repo, const std::string& name) {
    const auto revision = revision_of(repo, name);
    Plain files = Plain::array();
    for (const auto& [path, file] : revision->files) files.push_back({{"rfilename", path}});
    send_json(response, {{"id", repo.id}, {"sha", revision->commit}, {"private", false}, {"siblings", files}});
  }

  void send_tree(const httplib::Request& request, httplib::Response& response, const Target& target, const Repo& repo) {
    const auto revision = revision_of(repo, target.parts[5]);
    const std::string folder = joined(target.parts, 6);
    const auto query = [&](const char* key) {
      const auto found = target.query.find(key);
      return found == target.query.end() ? std::string() : found->second;
    };
    const std::string begin = folder.empty() ? "" : folder + "/", after = query("cursor");
    const bool recursive = query("recursive") == "true" || query("recursive") == "1" || query("recursive") == "True";
    // Folders and files by path; a folder's oid only has to be there.
    std::map<std::string, const ServedFile*> entries;
    bool known = folder.empty();
    for (auto at = revision->files.lower_bound(begin); at != revision->files.end() && at->first.rfind(begin, 0) == 0;
         ++at) {
      known = true;
      const std::string& path = at->first;
      for (size_t slash = path.find('/', begin.size()); slash != std::string::npos; slash = path.find('/', slash + 1)) {
        entries.emplace(path.substr(0, slash), nullptr);
        if (!recursive) break;
      }
      if (recursive || path.find('/', begin.size()) == std::string::npos) entries.emplace(path, &at->second);
    }
    if (!known) throw Refused{404, "EntryNotFound", folder + " does not exist on \"" + target.parts[5] + "\""};
    Plain answer = Plain::array();
    for (auto at = after.empty() ? entries.begin() : entries.upper_bound(after); at != entries.end(); ++at) {
      if (answer.size() == static_cast<size_t>(options.page)) {
        std::string path = request.target.substr(0, request.target.find('?'));
        response.set_header(
            "Link", cat("<", options.certificate.empty() ? "http://" : "https://",
                        shown(request.get_header_value("Host")), path, "?recursive=", recursive ? "true" : "false",
                        "&expand=false&cursor=", percent_encode(std::prev(at)->first, false), ">; rel=\"next\""));
        break;
      }
      if (at->second == nullptr) {
        answer.push_back({{"type", "directory"}, {"oid", std::string(40, '0')}, {"size", 0}, {"path", at->first}});
        continue;
      }
      const ServedFile& file = *at->second;
      Plain entry = {{"type", "file"}, {"oid", file.git_sha1}, {"size", file.size}, {"path", at->first}};
      if (file.large) entry["lfs"] = {{"oid", file.sha256}, {"size", file.size}, {"pointerSize", 134}};
      answer.push_back(std::move(entry));
    }
    send_json(response, answer);
  }

  void resolve(const httplib::Request& request, httplib::Response& response, const Repo& repo, const std::string& name,
               const std::string& path) {
    const auto revision = revision_of(repo, name);
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
    const Bytes bytes = range_of(request.get_header_value("Range"), file.size);
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
    response.set_content_provider(
        static_cast<size_t>(size), "application/octet-stream",
        [this, fd, first = bytes.first](size_t offset, size_t length, httplib::DataSink& sink) {
          thread_local std::string buffer(kBuffer, '\0');
          const ssize_t n = ::pread(*fd, buffer.data(), std::min(length, buffer.size()),
                                    static_cast<off_t>(static_cast<size_t>(first) + offset));
          if (n <= 0) return false;
          server->bytes_sent_ += n;  // before: who has read the last byte may look at it
          return sink.write(buffer.data(), static_cast<size_t>(n));
        });
  }
};

HubServer::HubServer(HubServerOptions options) : options_(std::move(options)), impl_(std::make_unique<Impl>(this)) {}

HubServer::~HubServer() { stop(); }

std::string HubServer::url() const {
  return cat(options_.certificate.empty() ? "http://" : "https://", options_.host, ":", port_);
}

void HubServer::bind() {
  port_ = options_.port == 0 ? impl_->http->bind_to_any_port(options_.host.c_str())
                             : (impl_->http->bind_to_port(options_.host.c_str(), options_.port) ? options_.port : -1);
  if (port_ > 0) return;
  throw Error({.wanted = cat("to listen on ", options_.host, ":", options_.port),
               .got = "a port that is taken or not allowed",
               .next = "choose another one"});
}

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
