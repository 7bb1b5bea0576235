// HTTP as a Hub client needs it, over libcurl: kept-alive connections from a pool, redirects followed by hand (so that
// the token never goes to another host, and the caller may refuse a destination before any byte is asked of it),
// back-off with jitter, and limits on everything that a hostile server could make large.
//
//   Http http({.user_agent = "hotswap/0.1.0"});
//   const HttpResponse answer = http.send({.url = "https://huggingface.co/api/models/gpt2", .token = token});
//   if (answer.status == 200) parse(answer.body);
//
// Proxies come from http_proxy, https_proxy, all_proxy and no_proxy, as libcurl reads them. One Http serves many
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotswap {

struct HttpOptions {
  std::string user_agent = "hotswap";
  std::string ca_file = {};     // PEM; empty: the system's certificates
  std::string http_proxy = {};  // of http:// addresses; empty: as libcurl reads the environment
  double connect_s = 10;        // until the connection stands
  double stall_s = 10;          // without at least stall_bytes a second
  int64_t stall_bytes = 1;
  double answer_s = 120;  // for a whole answer that is not streamed into a sink
  int retries = 5;        // after the first try: no connection, a cut answer, 408, 429, 500, 502, 503, 504
  double backoff_s = 1, backoff_max_s = 8;  // 1, 2, 4, 8, 8: each times 0.5 to 1, by chance
  double wait_max_s = 300;                  // a server that asks for more gets an error instead of our patience
  int redirects = 10;
  std::function<bool(const std::string& url)> allow_redirect = nullptr;  // asked before each redirect is followed
  std::function<void(double seconds)> sleep = nullptr;                   // for tests; default: really sleeps
};

struct HttpResponse {
  int status = 0;
  std::string url;                             // the last one asked
  std::map<std::string, std::string> headers;  // names in lower case; repeated ones joined by ", "
  std::string body;
  std::string header(const std::string& name) const;  // lower case; empty when absent
};

struct HttpRequest {
  std::string url;
  std::string method = "GET";  // or HEAD
  std::string token = {};      // sent as a bearer token to the url's own origin, nowhere else
  std::vector<std::string> headers = {};
  int64_t first = -1, last = -1;         // Range: bytes=first-last; last -1: to the end
  bool compressed = true;                // offer gzip; false asks for the bytes as they are
  bool follow_other_hosts = true;        // false: a redirect that names a host is the answer
  int retries = -1;                      // -1: HttpOptions::retries
  double answer_s = 0;                   // 0: HttpOptions::answer_s
  size_t body_limit = size_t{64} << 20;  // after decompression, where there is no sink
  // 2xx answers go here piece by piece, on_head first. What either throws ends the exchange and comes out of send().
  std::function<void(const HttpResponse& head)> on_head = nullptr;
  std::function<void(std::string_view bytes)> sink = nullptr;
};

class Http {
 public:
  explicit Http(HttpOptions options);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  // The answer, whatever its status; only transport failures, broken answers and refused redirects throw (HubError). An
  // exchange that breaks after its sink has had bytes is not repeated: the caller knows how to go on.
  HttpResponse send(const HttpRequest& request);
  const HttpOptions& options() const { return options_; }
  void wait(double seconds) const;  // through options().sleep
  double backoff(int attempt);      // seconds before try number attempt + 1, from 0

 private:
  struct Exchange;
  HttpResponse follow(const HttpRequest& request, size_t* delivered);
  HttpResponse exchange(const HttpRequest& request, const std::string& url, bool with_token, size_t* delivered);
  void* borrow();
  void give_back(void* handle, bool whole);  // whole: its exchange did not break

  HttpOptions options_;
  std::mutex mutex_;
  std::vector<void*> idle_;  // CURL*
  std::mt19937_64 random_;
};

// How long a 429 or 503 asks to wait, in seconds from `now` (Unix time); -1 when it does not say. Reads
// `ratelimit: "api";r=0;t=55` first, then Retry-After as seconds or as a date.
double asked_wait(const HttpResponse& answer, int64_t now);

bool is_transient_status(int status);

}  // namespace hotswap
