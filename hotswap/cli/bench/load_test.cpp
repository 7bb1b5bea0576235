#include "hotswap/cli/bench/load.h"

#include <gtest/gtest.h>

#include "hotswap/base/error.h"
#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using Load = test_support::Served;

ServerLoad small(const std::string& url) {
  return {.url = url, .streams = 3, .prompt_tokens = 5, .new_tokens = 7, .vocab = 200};
}

TEST_F(Load, ClosedLoopCountsEveryToken) {
  const ServerLoadResult r = measure_load(small(server->url()));
  EXPECT_EQ(r.requests, 9);
  EXPECT_EQ(r.failed, 0) << r.first_failure;
  EXPECT_EQ(r.new_tokens, 63);
  EXPECT_GT(r.seconds, 0);
  EXPECT_GT(r.first_token.p50, 0);
  EXPECT_LE(r.first_token.p50, r.first_token.p99);
  EXPECT_LE(r.first_token.p99, r.whole.p99);
  expect_nothing_left();
}

TEST_F(Load, OpenLoopTakesAsLongAsItsRateSays) {
  ServerLoad options = small(server->url());
  options.rate = 50;
  options.requests = 20;
  options.warm_up = 0;
  const ServerLoadResult r = measure_load(options);
  EXPECT_EQ(r.failed, 0) << r.first_failure;
  EXPECT_EQ(r.new_tokens, 140);
  EXPECT_GT(r.seconds, 0.1);  // the sum of 19 gaps of 0.02 s on average: below 0.1 s once in 10^6 seeds
}

TEST_F(Load, SamplingGoesAlong) {
  ServerLoad options = small(server->url());
  options.temperature = 0.7;
  options.top_k = 20;
  options.top_p = 0.9;
  EXPECT_EQ(measure_load(options).failed, 0);
  options.top_p = 7;  // so the server has read it
  EXPECT_NE(measure_load(options).first_failure.find("top_p"), std::string::npos);
}

TEST_F(Load, RefusedRequestsAreCounted) {
  ServerLoad options = small(server->url());
  options.new_tokens = 10000;
  const ServerLoadResult r = measure_load(options);
  EXPECT_EQ(r.failed, r.requests);
  EXPECT_NE(r.first_failure.find("status 400"), std::string::npos) << r.first_failure;
  EXPECT_EQ(r.new_tokens, 0);
}

TEST_F(Load, NoServerIsAnError) {
  const std::string url = server->url();
  server.reset();
  EXPECT_THROW(measure_load(small(url)), Error);
}

}  // namespace
}  // namespace hotswap
