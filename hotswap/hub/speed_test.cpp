// Our side of bench/hub_speed.py, which starts the server, gives each run its cache and measures Python's side: timed
// inside the process, as Python's calls are. Not run otherwise.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "hotswap/base/test_support.h"
#include "hotswap/hub/get_kernel.h"

namespace hotswap {
namespace {

using Clock = std::chrono::steady_clock;

std::string given(const char* name) {
  const char* value = std::getenv(name);
  if (value != nullptr) return value;
  throw Error(
      {.kind = ErrorKind::kNotFound, .wanted = name, .got = "no such variable", .next = "run bench/hub_speed.py"});
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

TEST(HubSpeed, DISABLED_Snapshot) {
  const auto start = Clock::now();
  const auto folder = Hub(HubOptions::from_env()).snapshot({RepoType::kModel, given("HOTSWAP_TEST_REPO")}, "main");
  std::printf("{\"seconds\": %.6f, \"folder\": \"%s\"}\n", seconds_since(start), folder.c_str());
}

// As another process would: nothing is kept in memory from call to call. First the way from a name to a folder, alone,
// as Python's side repeats its own; then with what get_kernel adds: every byte of the package held against its digest.
TEST(HubSpeed, DISABLED_Kernel) {
  constexpr int kCalls = 200;
  const KernelRequest request{.ref = KernelRef(given("HOTSWAP_TEST_REPO"), {.version = 1}),
                              .system = {.torch = {{2, 11}}, .no_python = true}};
  const std::string folder = [&] {
    Hub hub(HubOptions::from_env());
    return get_kernel(hub, request).folder.string();  // downloads
  }();
  const auto median = [](const auto& call) {
    std::vector<double> times;
    for (int i = 0; i < kCalls; ++i) {
      const auto start = Clock::now();
      call();
      times.push_back(seconds_since(start));
    }
    std::nth_element(times.begin(), times.begin() + kCalls / 2, times.end());
    return times[kCalls / 2];
  };
  const double found = median([&] {
    Hub hub(HubOptions::from_env());
    KernelLocation location = locate_kernel(hub, request);
    const auto there = fetch_variants(hub, location, *location.choice.chosen) / "build" / *location.choice.chosen;
    EXPECT_EQ(there.native(), folder);
  });
  const double verified = median([&] {
    Hub hub(HubOptions::from_env());
    EXPECT_EQ(get_kernel(hub, request).folder.native(), folder);
  });
  std::printf("{\"seconds\": %.9f, \"verified\": %.9f, \"folder\": \"%s\"}\n", found, verified, folder.c_str());
}

}  // namespace
}  // namespace hotswap
