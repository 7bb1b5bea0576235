// For tests: ranks as processes of this machine, with the environment that torchrun gives them.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "hotswap/base/test_support.h"
#include "hotswap/training/test_child.h"

namespace hotswap::test_support {

inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

struct EndedRank {
  int status = 0;  // of waitpid
  std::string errors;
};

struct RanksRun {
  int size = 2;
  int restarts = 0;
};

void use_one_thread();  // of torch; in ranks_test.cpp

// Runs work(rank) in each of the ranks, of one thread each, and waits for their ends.
template <typename Work>
std::vector<EndedRank> run_ranks(const RanksRun& run, const Work& work) {
  const TempFolder folder;
  const std::string port = std::to_string(free_port());
  const auto errors_of = [&](int rank) { return (folder / ("errors" + std::to_string(rank))).string(); };
  std::vector<pid_t> children;
  for (int rank = 0; rank < run.size; ++rank) {
    children.push_back(in_child([&] {
      const int errors = ::open(errors_of(rank).c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
      ::dup2(errors, STDERR_FILENO);
      const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
      set("RANK", std::to_string(rank));
      set("LOCAL_RANK", std::to_string(rank));
      set("WORLD_SIZE", std::to_string(run.size));
      set("MASTER_ADDR", "127.0.0.1");
      set("MASTER_PORT", port);
      set("TORCHELASTIC_RESTART_COUNT", std::to_string(run.restarts));
      use_one_thread();
      work(rank);
    }));
  }
  std::vector<EndedRank> ended;
  for (int rank = 0; rank < run.size; ++rank) {
    const int status = status_of(children[static_cast<size_t>(rank)]);
    ended.push_back({status, read_file(errors_of(rank))});
  }
  return ended;
}

inline void expect_all_well(const std::vector<EndedRank>& ended) {
  for (size_t rank = 0; rank < ended.size(); ++rank) {
    EXPECT_EQ(ended[rank].status, 0) << "rank " << rank << ": " << ended[rank].errors;
  }
}

}  // namespace hotswap::test_support
