#include "hotswap/hub/net/options.h"

#include <charconv>

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

fs::path expanded(const std::string& path) { return expand_env(path); }

// libcurl reads HTTPS_PROXY in both cases but HTTP_PROXY in lower case alone, because a CGI program's client can set
// it; Python looks whether this is one.
std::string proxy_from_env() {
  if (env_is_set(EnvVar::kHttpProxy) || env_is_set(EnvVar::kRequestMethod)) return "";
  return env(EnvVar::kHttpProxyUpper).value_or("");
}

// Tokens come out of files and secrets with line ends; a header must not have any.
std::string cleaned(std::string token) {
  std::string out;
  for (const char c : token) {
    if (c != '\r' && c != '\n') out += c;
  }
  const size_t first = out.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  out = out.substr(first, out.find_last_not_of(" \t") - first + 1);
  for (const char c : out) {
    if (c <= ' ' || c >= 0x7F) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "a Hub token of printable characters",
                   .got = "one with blanks or control characters inside",
                   .next = "correct HF_TOKEN or the token file"});
    }
  }
  return out;
}

std::string token_from_env() {
  if (env_flag(EnvVar::kHfDisableImplicitToken, false)) return "";
  for (const EnvVar variable : {EnvVar::kHfToken, EnvVar::kHuggingFaceHubToken}) {
    if (const auto value = env(variable)) {
      if (std::string token = cleaned(*value); !token.empty()) return token;
    }
  }
  const auto named = env(EnvVar::kHfTokenPath);
  const fs::path file = named ? expanded(*named) : hf_home() / "token";
  return fs::is_regular_file(file) ? cleaned(read_file(file)) : "";
}

double seconds_from_env(EnvVar variable, double otherwise) {
  const auto text = env(variable);
  if (!text) return otherwise;
  double value = 0;
  const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (code == std::errc() && end == text->data() + text->size() && value >= 0 && value <= 1e9) return value;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(env_name(variable), " as seconds"),
               .got = "'" + *text + "'",
               .next = "correct it or unset it"});
}

}  // namespace

fs::path hf_home() {
  if (const auto given = env(EnvVar::kHfHome)) return expanded(*given);
  const auto xdg = env(EnvVar::kXdgCacheHome);
  return (xdg ? expanded(*xdg) : expanded("~/.cache")) / "huggingface";
}

HubOptions HubOptions::from_env() {
  HubOptions options;
  if (auto endpoint = env(EnvVar::kHfEndpoint)) {
    while (!endpoint->empty() && endpoint->back() == '/') endpoint->pop_back();
    options.endpoint = *endpoint;
  }
  options.token = token_from_env();
  const auto cache = env(EnvVar::kHfHubCache), older = env(EnvVar::kHuggingFaceHubCache);
  options.cache = cache ? expanded(*cache) : older ? expanded(*older) : hf_home() / "hub";
  const auto kernels = env(EnvVar::kKernelsCache);
  options.kernels_cache = kernels ? expanded(*kernels) : options.cache;
  options.offline = env_flag(EnvVar::kHubOffline, false) || env_flag(EnvVar::kTransformersOffline, false);
  options.symlinks = !env_flag(EnvVar::kHfDisableSymlinks, false);
  options.progress = !env_flag(EnvVar::kHfDisableProgressBars, false);
  options.ttl_s = seconds_from_env(EnvVar::kHubTtl, options.ttl_s);
  options.head_s = seconds_from_env(EnvVar::kHfEtagTimeout, options.head_s);
  options.http.stall_s = seconds_from_env(EnvVar::kHfDownloadTimeout, options.http.stall_s);
  options.http.ca_file = env(EnvVar::kSslCertFile).value_or("");
  options.http.http_proxy = proxy_from_env();
  options.http.user_agent = "hotswap/0.1.0; c++/20";
  if (const auto origin = env(EnvVar::kHfUserAgentOrigin)) options.http.user_agent += "; origin/" + *origin;
  return options;
}

}  // namespace hotswap
