#include "hotswap/hub/net/http.h"

#include <curl/curl.h>
#include <signal.h>

#include <chrono>
#include <ctime>
#include <thread>

#include "hotswap/base/log.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/net/hub_error.h"
#include "hotswap/hub/net/url.h"

namespace hotswap {
namespace {

constexpr size_t kHeaderBytes = 64 << 10, kHeaderLines = 256;
constexpr size_t kErrorBody = 64 << 10;  // of answers that nobody reads but for their message

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// A try that another one may mend. Wrong certificates, broken gzip and the like come out the same each time.
bool is_transient(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

bool is_connection(CURLcode code) {
  return is_transient(code) || code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
}

HubError broken(const std::string& url, const std::string& wanted, const std::string& got) {
  return {{.wanted = wanted, .got = got + " from " + url_shown(url), .next = "the server or a proxy is at fault"},
          {.reason = HubReason::kBadAnswer, .url = url}};
}

void init_curl() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "libcurl",
                 .got = curl_easy_strerror(code),
                 .next = "check its installation"});
  }
}

// libcurl does not silence SIGPIPE where TLS is written to a connection that the other side has closed, and may not
// touch the process's handlers in a program with threads. Such a signal goes to the thread that wrote: it is held off
// there.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now{};
    while (sigismember(&before_, SIGPIPE) == 0 && sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) continue;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
};

// The number after `key=` in one item of a ratelimit header; -1 when absent.
double ratelimit_number(std::string_view item, std::string_view key) {
  size_t at = 0;
  while ((at = item.find(';', at)) != std::string_view::npos) {
    const std::string_view parameter = trim(item.substr(++at));
    if (parameter.substr(0, key.size()) != key || parameter.substr(key.size(), 1) != "=") continue;
    const std::string digits(parameter.substr(key.size() + 1, 10));
    return digits.empty() || digits[0] < '0' || digits[0] > '9' ? -1 : std::strtod(digits.c_str(), nullptr);
  }
  return -1;
}

}  // namespace

std::string HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

bool is_transient_status(int status) {
  return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504);
}

double asked_wait(const HttpResponse& answer, int64_t now) {
  const std::string limits = answer.header("ratelimit");
  double wait = -1;
  for (size_t begin = 0; begin < limits.size();) {
    const size_t end = std::min(limits.find(',', begin), limits.size());
    const std::string_view item = std::string_view(limits).substr(begin, end - begin);
    if (ratelimit_number(item, "r") == 0) wait = std::max(wait, ratelimit_number(item, "t"));
    begin = end + 1;
  }
  if (wait >= 0) return wait;
  const std::string after = answer.header("retry-after");
  if (after.empty()) return -1;
  if (after.find_first_not_of("0123456789") == std::string::npos) return std::strtod(after.c_str(), nullptr);
  const time_t date = curl_getdate(after.c_str(), nullptr);
  return date < 0 ? -1 : static_cast<double>(std::max<int64_t>(0, date - now));
}

// One request and its answer, as libcurl's callbacks see them. They are C: what our side throws waits in `thrown`.
struct Http::Exchange {
  const HttpRequest* request;
  HttpResponse answer = {};
  size_t header_bytes = 0, header_lines = 0, delivered = 0;
  bool head_whole = false;  // its empty line has come
  bool head_done = false;
  std::exception_ptr thrown = nullptr;

  bool streams() const { return request->sink && answer.status >= 200 && answer.status < 300; }

  void take_header(std::string_view line) {
    header_bytes += line.size();
    if (header_bytes > kHeaderBytes || ++header_lines > kHeaderLines) {
      throw broken(answer.url, cat("headers of ", kHeaderBytes, " bytes in ", kHeaderLines, " lines at most"), "more");
    }
    if (line.substr(0, 5) == "HTTP/") {  // a new answer: after 100 Continue, or a proxy's own
      answer.headers.clear();
      head_whole = false;
      const size_t space = line.find(' ');
      answer.status = space == std::string_view::npos ? 0 : std::atoi(std::string(line.substr(space + 1, 3)).c_str());
      return;
    }
    if (trim(line).empty()) head_whole = true;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    std::string& value = answer.headers[lower(trim(line.substr(0, colon)))];
    if (!value.empty()) value += ", ";
    value += trim(line.substr(colon + 1));
  }

  void finish_head() {
    if (head_done) return;
    head_done = true;
    if (streams() && request->on_head) request->on_head(answer);
  }

  void take_body(std::string_view bytes) {
    finish_head();
    if (streams()) {
      delivered += bytes.size();
      request->sink(bytes);
      return;
    }
    const bool wanted = answer.status >= 200 && answer.status < 300;
    if (answer.body.size() + bytes.size() > (wanted ? request->body_limit : kErrorBody)) {
      if (!wanted) return;
      throw broken(answer.url, cat("an answer of ", request->body_limit, " bytes at most"), "more");
    }
    answer.body += bytes;
  }

  template <void (Exchange::*take)(std::string_view)>
  static size_t callback(char* data, size_t size, size_t count, void* self) {
    auto* exchange = static_cast<Exchange*>(self);
    try {
      (exchange->*take)({data, size * count});
      return size * count;
    } catch (...) {
      exchange->thrown = std::current_exception();
      return size * count == 0 ? 1 : 0;  // any other number makes libcurl stop
    }
  }
};

Http::Http(HttpOptions options) : options_(std::move(options)), random_(std::random_device{}()) { init_curl(); }

Http::~Http() {
  if (idle_.empty()) return;
  const NoSigpipe quiet;
  for (void* handle : idle_) curl_easy_cleanup(handle);
}

void* Http::borrow() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      void* handle = idle_.back();
      idle_.pop_back();
      return handle;
    }
  }
  void* handle = curl_easy_init();
  if (handle == nullptr)
    throw Error(
        {.kind = ErrorKind::kUnavailable, .wanted = "a libcurl handle", .got = "none", .next = "free some memory"});
  return handle;
}

void Http::give_back(void* handle, bool whole) {
  curl_easy_reset(handle);  // keeps the connection, forgets the request
  if (!whole) {             // after a failed resolve libcurl 7.88 takes no CURLOPT_BUFFERSIZE, whatever is reset
    curl_easy_cleanup(handle);
    return;
  }
  const std::lock_guard lock(mutex_);
  idle_.push_back(handle);
}

void Http::wait(double seconds) const {
  if (options_.sleep) return options_.sleep(seconds);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

double Http::backoff(int attempt) {
  const std::lock_guard lock(mutex_);
  const double whole =
      std::min(options_.backoff_max_s, options_.backoff_s * static_cast<double>(1 << std::min(attempt, 20)));
  return whole * std::uniform_real_distribution<double>(0.5, 1.0)(random_);
}

HttpResponse Http::exchange(const HttpRequest& request, const std::string& url, bool with_token, size_t* delivered) {
  const NoSigpipe quiet;
  struct Lease {
    Http* http;
    CURL* handle = http->borrow();
    curl_slist* headers = nullptr;
    bool whole = false;  // the exchange came to its end
    ~Lease() {
      http->give_back(handle, whole);
      curl_slist_free_all(headers);
    }
    void header(const std::string& line) { headers = curl_slist_append(headers, line.c_str()); }
  } lease{this};
  Exchange state{.request = &request};
  state.answer.url = url;

  const auto set = [&](CURLoption option, auto value) {
    if (const CURLcode code = curl_easy_setopt(lease.handle, option, value); code != CURLE_OK) {
      throw Error({.kind = ErrorKind::kUnavailable,
                   .wanted = cat("libcurl to take option ", static_cast<int>(option)),
                   .got = curl_easy_strerror(code),
                   .next = "use libcurl 7.81 or newer"});
    }
  };
  set(CURLOPT_URL, url.c_str());
#if LIBCURL_VERSION_NUM >= 0x075500
  set(CURLOPT_PROTOCOLS_STR, "http,https");
#else
  set(CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));  // parallel ranges want their own connections
  set(CURLOPT_USERAGENT, options_.user_agent.c_str());
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_s * 1000));
  set(CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(options_.stall_bytes));
  set(CURLOPT_LOW_SPEED_TIME, std::max(1L, static_cast<long>(options_.stall_s)));
  const double answer_s = request.answer_s > 0 ? request.answer_s : options_.answer_s;
  if (!request.sink) set(CURLOPT_TIMEOUT_MS, static_cast<long>(answer_s * 1000));
  set(CURLOPT_BUFFERSIZE, 512L << 10);
  set(CURLOPT_ACCEPT_ENCODING, request.compressed ? "gzip" : "identity");
  if (!options_.ca_file.empty()) set(CURLOPT_CAINFO, options_.ca_file.c_str());
  if (!options_.http_proxy.empty() && url.starts_with("http:")) set(CURLOPT_PROXY, options_.http_proxy.c_str());
  if (request.method == "HEAD") set(CURLOPT_NOBODY, 1L);
  if (with_token && !request.token.empty()) lease.header("Authorization: Bearer " + request.token);
  if (request.first >= 0) {
    lease.header(cat("Range: bytes=", request.first, "-", request.last < 0 ? "" : std::to_string(request.last)));
  }
  for (const std::string& line : request.headers) lease.header(line);
  set(CURLOPT_HTTPHEADER, lease.headers);
  set(CURLOPT_HEADERFUNCTION, &Exchange::callback<&Exchange::take_header>);
  set(CURLOPT_HEADERDATA, &state);
  set(CURLOPT_WRITEFUNCTION, &Exchange::callback<&Exchange::take_body>);
  set(CURLOPT_WRITEDATA, &state);
  char reason[CURL_ERROR_SIZE] = "";
  set(CURLOPT_ERRORBUFFER, reason);

  const CURLcode code = curl_easy_perform(lease.handle);
  *delivered += state.delivered;
  if (state.thrown) std::rethrow_exception(state.thrown);
  if (code == CURLE_OK && !state.head_whole) {  // libcurl takes a connection that closes there for an empty answer
    throw HubError({.wanted = "an answer of " + url_shown(url),
                    .got = "headers that end in the middle",
                    .next = "check the network and the proxy"},
                   {.reason = HubReason::kConnection, .transient = true, .url = url});
  }
  if (code == CURLE_OK) {
    lease.whole = true;
    state.finish_head();
    return std::move(state.answer);
  }
  const std::string why = *reason != '\0' ? reason : curl_easy_strerror(code);
  if (!is_connection(code)) throw broken(url, "an HTTP answer", why);
  throw HubError({.wanted = "an answer of " + url_shown(url),
                  .got = why,
                  .next = "check the network, the proxy and HF_ENDPOINT; HF_HUB_OFFLINE=1 works with what is cached"},
                 {.reason = HubReason::kConnection, .transient = is_transient(code), .url = url});
}

HttpResponse Http::follow(const HttpRequest& request, size_t* delivered) {
  std::string url = request.url;
  bool with_token = true;
  for (int hop = 0; hop <= options_.redirects; ++hop) {
    HttpResponse answer = exchange(request, url, with_token, delivered);
    const std::string location = answer.header("location");
    if (!is_redirect(answer.status) || location.empty()) return answer;
    if (url_names_host(location) && !request.follow_other_hosts) return answer;
    std::string next;
    try {
      next = url_resolve(url, location);
    } catch (const Error& error) {
      throw broken(url, error.wanted(), error.got());
    }
    const bool same_origin = url_origin(next) == url_origin(url);
    if (url.rfind("https:", 0) == 0 && next.rfind("https:", 0) != 0) {
      throw HubError({.wanted = "to stay with https after " + url_shown(url),
                      .got = "a redirect to " + url_shown(next),
                      .next = "the server is misconfigured, or someone is between it and you"},
                     {.reason = HubReason::kNotAllowed, .status = answer.status, .url = next});
    }
    if (options_.allow_redirect && !options_.allow_redirect(next)) {
      throw HubError({.wanted = "an allowed destination after " + url_shown(url),
                      .got = "a redirect to " + url_shown(next),
                      .next = "allow it, or use the destination's own name"},
                     {.reason = HubReason::kNotAllowed, .status = answer.status, .url = next});
    }
    with_token = with_token && same_origin;  // once away, it stays away
    url = std::move(next);
  }
  throw broken(request.url, cat(options_.redirects, " redirects at most"), "more, perhaps a loop,");
}

HttpResponse Http::send(const HttpRequest& request) {
  const int retries = request.retries >= 0 ? request.retries : options_.retries;
  for (int attempt = 0;; ++attempt) {
    size_t delivered = 0;
    double wait_s = 0;
    std::string why;
    try {
      HttpResponse answer = follow(request, &delivered);
      if (!is_transient_status(answer.status)) return answer;
      const double asked = asked_wait(answer, std::time(nullptr));
      if (attempt >= retries || asked > options_.wait_max_s) return answer;
      wait_s = asked >= 0 ? asked + backoff(0) : backoff(attempt);  // never before the time that was asked for
      why = cat("status ", answer.status);
    } catch (const HubError& error) {
      if (!error.transient() || delivered > 0 || attempt >= retries) throw;
      wait_s = backoff(attempt);
      why = error.got();
    }
    log_info(url_shown(request.url), ": ", why, "; trying again in ", wait_s, " s");
    wait(wait_s);
  }
}

}  // namespace hotswap
