#include "hotswap/serve/access.h"

#include <algorithm>

#include "hotswap/http/listen.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/serve/refusals.h"

namespace hotswap::serve {
namespace {

// "Example.com:8000" -> "example.com", "[::1]:8000" -> "[::1]"; "" where something else than a port follows the name
std::string host_name(const std::string& host) {
  const size_t end = std::min(host.starts_with("[") ? host.find(']') + 1 : host.find(':'), host.size());
  const std::string port = host.substr(end);
  const bool is_port = port.empty() || (port[0] == ':' && port.find_first_not_of("0123456789", 1) == std::string::npos);
  return is_port ? lower(host.substr(0, end)) : "";
}

bool is_allowed(const std::string& host, const AccessRules& rules) {
  const std::string name = host_name(host);
  return is_loopback(name) || std::find(rules.hosts.begin(), rules.hosts.end(), name) != rules.hosts.end();
}

}  // namespace

void check_origin(const httplib::Request& request, const AccessRules& rules) {
  const std::string host = request.get_header_value("Host");
  if (rules.loopback && !host.empty() && !is_allowed(host, rules)) {
    throw ApiError(403, {"a Host of this machine", shown(host), "start the server with --allowed-host and its name"});
  }
  if (!request.has_header("Origin")) return;
  const std::string origin = request.get_header_value("Origin");
  const size_t scheme = origin.find("://");
  const std::string from = scheme == std::string::npos ? "" : origin.substr(scheme + 3);
  const bool named = std::find(rules.hosts.begin(), rules.hosts.end(), host_name(from)) != rules.hosts.end();
  if (!from.empty() && (lower(from) == lower(host) || named)) return;
  throw ApiError(403, {"no Origin, or this server's", shown(origin),
                       "start the server with --allowed-host and the name of its host"});
}

void check_key(const httplib::Request& request, const AccessRules& rules) {
  if (rules.api_keys.empty()) return;
  const std::string given = request.get_header_value("Authorization");
  bool known = false;
  for (const std::string& key : rules.api_keys) known = is_bearer(given, key) || known;
  if (known) return;
  throw ApiError(401, "Incorrect API key provided; send Authorization: Bearer KEY", "", "invalid_api_key");
}

void check_content_type(const httplib::Request& request) {
  const std::string type = request.get_header_value("Content-Type");
  if (lower(trim(type.substr(0, type.find(';')))) == "application/json") return;
  throw ApiError(415, {"Content-Type application/json", type.empty() ? "none" : shown(type),
                       "send the header Content-Type: application/json"});
}

void check_length(const httplib::Request& request, size_t most) {
  if (request.has_header("Transfer-Encoding")) return;
  const std::string length = request.get_header_value("Content-Length");
  if (length.empty()) {  // httplib would read until the client closes
    throw ApiError(411, {"the header Content-Length", "none", "send it, as curl -d and HTTP libraries do"});
  }
  const bool is_number = length.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || request.get_header_value_count("Content-Length") > 1) {
    throw ApiError(400, {"one Content-Length, a number of bytes", is_number ? "several" : shown(length),
                         "send the number of the body's bytes once"});
  }
  if (length.size() > 18 || std::stoull(length) > most) throw body_too_large(most);
}

}  // namespace hotswap::serve
