// Which addresses are proxies of the administrator's: what they say of the client's address, X-Forwarded-*, is
// believed, and nobody else's.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace hotswap {

class TrustedProxies {
 public:
  // "127.0.0.1", "::1", "10.0.0.0/8". Error where one is none of these.
  explicit TrustedProxies(const std::vector<std::string>& networks);
  bool has(const std::string& address) const;

 private:
  struct Network {
    std::array<uint8_t, 16> address;  // of IPv6, IPv4 mapped into it
    int bits;
  };
  static bool parse(const std::string& text, Network& network);
  std::vector<Network> networks_;
};

std::string check_network(const std::string& text);  // "", or why it is none

}  // namespace hotswap
