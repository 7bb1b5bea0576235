// The port of `hotswap serve`: a taken one is an error before the model is read.
#include <arpa/inet.h>
#include <sys/socket.h>

#include "hotswap/base/test_support.h"
#include "hotswap/cli/test_program.h"
#include "hotswap/http/listen.h"

namespace hotswap {
namespace {

using test_support::Cli;
using test_support::expect_has;
using test_support::message_of;
using test_support::Outcome;

constexpr const char* kHost = "127.0.0.1";

class Listening {
 public:
  Listening() : port_(bind_and_listen(server_, kHost, 0)) {}
  ~Listening() { server_.stop(); }
  int port() const { return port_; }

 private:
  httplib::Server server_;
  int port_;
};

bool connects(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool open = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return open;
}

TEST(HeldPort, IsNobodyElsesAndRefusesConnections) {
  HeldPort held(kHost, 0);
  ASSERT_GT(held.port(), 0);
  EXPECT_FALSE(connects(held.port()));
  expect_has(message_of([&] { HeldPort(kHost, held.port()); }), {cat(held.port()), "a port that is taken"});
  httplib::Server other;
  expect_has(message_of([&] { bind_and_listen(other, kHost, held.port()); }), {"taken"});
  held.release();
  httplib::Server server;
  EXPECT_EQ(bind_and_listen(server, kHost, held.port()), held.port());
  EXPECT_TRUE(connects(held.port()));
}

TEST(HeldPort, NamesWhatItCannotHave) {
  const Listening other;
  expect_has(message_of([&] { HeldPort(kHost, other.port()); }), {cat(other.port()), "a port that is taken"});
  expect_has(message_of([] { HeldPort("192.0.2.1", 0); }), {"192.0.2.1", "Cannot assign"});
  expect_has(message_of([] { HeldPort("no.such.host.invalid", 0); }), {"no.such.host.invalid", "expected an address"});
}

TEST_F(Cli, ServeNamesWhatIsNoAddressBeforeItAsksForAKey) {
  const Outcome outcome = run("serve /nowhere --host 256.0.0.1 --port 0");
  EXPECT_EQ(outcome.status, 1);
  expect_has(outcome.err, {"expected an address of this machine", "got '256.0.0.1': ", "; give 127.0.0.1"});
}

// The model is never opened: there is none.
TEST_F(Cli, ServeNamesATakenPortBeforeItLoads) {
  const Listening other;
  const Outcome outcome = run(cat("serve /nowhere --port ", other.port()));
  EXPECT_EQ(outcome.status, 75) << outcome.err;
  expect_has(outcome.err, {cat("127.0.0.1:", other.port()), "a port that is taken"});
  EXPECT_TRUE(outcome.out.empty()) << outcome.out;
}

}  // namespace
}  // namespace hotswap
