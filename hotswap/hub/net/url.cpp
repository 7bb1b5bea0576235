#include "hotswap/hub/net/url.h"

#include <curl/curl.h>

#include <memory>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

struct UrlCleanup {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using UrlHandle = std::unique_ptr<CURLU, UrlCleanup>;

UrlHandle parsed(const std::string& text) {
  UrlHandle url(curl_url());
  const CURLUcode code = url ? curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) : CURLUE_OUT_OF_MEMORY;
  if (code != CURLUE_OK) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "an http or https URL",
                 .got = "'" + text + "'",
                 .next = "correct it"});
  }
  return url;
}

std::string part_of(const UrlHandle& url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, flags) != CURLUE_OK || text == nullptr) return "";
  std::string copy(text);
  curl_free(text);
  return copy;
}

std::string web_scheme(const UrlHandle& url, const std::string& text) {
  std::string scheme = part_of(url, CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https") {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "an http or https URL",
                 .got = "'" + text + "'",
                 .next = "no other protocol is spoken"});
  }
  return scheme;
}

}  // namespace

std::string percent_encode(std::string_view text, bool keep_slash) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (c == '/' && keep_slash);
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

std::string url_origin(const std::string& text) {
  const UrlHandle url = parsed(text);
  std::string host = part_of(url, CURLUPART_HOST);
  for (char& c : host) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return web_scheme(url, text) + "://" + host + ":" + part_of(url, CURLUPART_PORT, CURLU_DEFAULT_PORT);
}

std::string url_resolve(const std::string& base, const std::string& location) {
  const UrlHandle url = parsed(base);
  if (curl_url_set(url.get(), CURLUPART_URL, location.c_str(), 0) != CURLUE_OK) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a URL to go on to from " + url_shown(base),
                 .got = "'" + location.substr(0, 200) + "'",
                 .next = "try again later; if that does not help, report it to the server's operator"});
  }
  web_scheme(url, location);
  return part_of(url, CURLUPART_URL);
}

bool url_names_host(std::string_view location) {
  if (location.substr(0, 2) == "//") return true;
  const size_t colon = location.find(':');
  return colon != std::string_view::npos && colon < location.find_first_of("/?#");
}

std::string url_shown(const std::string& url) {
  std::string shown = url.substr(0, url.find('?'));
  const size_t host = shown.find("://");
  if (host == std::string::npos) return shown;
  const size_t slash = shown.find('/', host + 3), at = shown.rfind('@', slash);
  if (at != std::string::npos && at > host) shown.erase(host + 3, at - host - 2);
  return shown;
}

std::string link_next(std::string_view header) {
  for (size_t open = header.find('<'); open != std::string_view::npos; open = header.find('<', open + 1)) {
    const size_t close = header.find('>', open);
    if (close == std::string_view::npos) return "";
    const size_t next = header.find('<', close);
    const std::string_view attributes = header.substr(close, next == std::string_view::npos ? next : next - close);
    if (attributes.find("rel=\"next\"") != std::string_view::npos ||
        attributes.find("rel=next") != std::string_view::npos) {
      return std::string(header.substr(open + 1, close - open - 1));
    }
  }
  return "";
}

}  // namespace hotswap
