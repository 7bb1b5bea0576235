#include "hotswap/hub/serve/trusted_proxies.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "hotswap/base/error.h"

namespace hotswap {

TrustedProxies::TrustedProxies(const std::vector<std::string>& networks) {
  for (const std::string& text : networks) {
    networks_.emplace_back();
    if (parse(text, networks_.back())) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "an IP address or a network such as 10.0.0.0/8",
                 .got = "'" + text + "'",
                 .next = "give the address that the proxy connects from"});
  }
}

bool TrustedProxies::parse(const std::string& text, Network& network) {
  const size_t slash = std::min(text.find('/'), text.size());
  const std::string address = text.substr(0, slash);
  const bool v4 = address.find(':') == std::string::npos;
  network.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const int before = v4 ? 96 : 0, all = v4 ? 32 : 128;
  if (::inet_pton(v4 ? AF_INET : AF_INET6, address.c_str(), network.address.data() + before / 8) != 1) return false;
  int bits = all;
  if (slash < text.size()) {
    const char* end = text.data() + text.size();
    const auto [last, code] = std::from_chars(text.data() + slash + 1, end, bits);
    if (code != std::errc() || last != end || bits < 0 || bits > all) return false;
  }
  network.bits = before + bits;
  return true;
}

bool TrustedProxies::has(const std::string& text) const {
  Network client{};
  if (!parse(text, client) || client.bits != 128) return false;
  return std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
    for (int bit = 0; bit < network.bits; bit += 8) {
      const int shift = std::max(0, bit + 8 - network.bits);
      const auto at = static_cast<size_t>(bit / 8);
      if ((client.address[at] >> shift) != (network.address[at] >> shift)) return false;
    }
    return true;
  });
}

std::string check_network(const std::string& text) {
  try {
    const TrustedProxies network({text});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace hotswap
