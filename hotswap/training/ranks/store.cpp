#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "hotswap/base/error.h"
#include "hotswap/training/ranks/ranks_impl.h"

namespace hotswap {

c10::intrusive_ptr<c10d::Store> open_store(const RankEnvironment& e, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(e.master_port);
  options.isServer = !e.agent_has_store && e.is_first();
  options.numWorkers = static_cast<size_t>(e.size);
  options.waitWorkers = false;  // the first collective waits, and its error names the time-out
  options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(e.master_address, options);
    // Keys of an attempt before this one are others: what they hold is of processes that have ended.
    return c10::make_intrusive<c10d::PrefixStore>(cat("hotswap/", e.restarts), store);
  } catch (const std::exception& error) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = cat("the store of the ranks at ", e.master_address, ":", e.master_port,
                               options.isServer ? ", served by this rank" : ""),
                 .got = std::string(error.what()).substr(0, std::string(error.what()).find('\n')),
                 .next =
                     "look at MASTER_ADDR, MASTER_PORT and the network between the machines; a port that is taken is "
                     "another run's"});
  }
}

}  // namespace hotswap
