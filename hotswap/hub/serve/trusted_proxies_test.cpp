#include "hotswap/hub/serve/trusted_proxies.h"

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using test_support::message_of;

TEST(TrustedProxies, AddressesAndNetworks) {
  const TrustedProxies some({"127.0.0.1", "::1", "10.0.0.0/8", "192.168.4.0/22", "fd00::/9"});
  for (const char* address : {"127.0.0.1", "::ffff:127.0.0.1", "::1", "10.255.1.2", "192.168.7.255", "fd7f::1"}) {
    EXPECT_TRUE(some.has(address)) << address;
  }
  for (const char* address : {"127.0.0.2", "11.0.0.1", "192.168.8.0", "fd80::1", "::2", "", "proxy", "10.0.0.0/8"}) {
    EXPECT_FALSE(some.has(address)) << address;
  }
  EXPECT_TRUE(TrustedProxies({"0.0.0.0/0"}).has("8.8.8.8"));
  EXPECT_FALSE(TrustedProxies({"0.0.0.0/0"}).has("2001:db8::1"));
  EXPECT_FALSE(TrustedProxies({}).has("127.0.0.1"));
  for (const char* bad : {"", "nginx", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "10.0.0.0/8x"}) {
    EXPECT_NE(message_of([&] { const TrustedProxies none({bad}); }), "no error") << bad;
    EXPECT_NE(check_network(bad), "") << bad;
  }
}

}  // namespace
}  // namespace hotswap
