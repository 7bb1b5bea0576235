#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "hotswap/base/error.h"
#include "hotswap/training/ranks/heartbeat_impl.h"

namespace hotswap {
namespace {

std::string own_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "an unnamed host";
}

}  // namespace

Heartbeat::Heartbeat(c10::intrusive_ptr<c10d::Store> store, Options options)
    : store_(std::move(store)),
      options_(std::move(options)),
      interval_(std::clamp(options_.timeout.count() / 6, 0.5, 2.0)),
      host_(own_host()),
      peers_(static_cast<size_t>(options_.size)) {
  for (Peer& peer : peers_) peer.heard = Clock::now();
}

void Heartbeat::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string Heartbeat::key_of(const char* what, int rank) const { return cat(what, "/", rank); }

void Heartbeat::beat() {
  store_->set(key_of("beat", options_.rank), cat(++beats_, " ", collectives_.load(), " ", step_.load(), " ", host_));
}

std::vector<int> Heartbeat::wait_for_all() {
  const auto deadline = Clock::now() + options_.timeout;
  while (true) {
    std::vector<int> missing;
    for (int rank = 0; rank < options_.size; ++rank) {
      if (!store_->check({key_of("beat", rank)})) missing.push_back(rank);
    }
    if (missing.empty() || Clock::now() >= deadline) return missing;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void Heartbeat::start() {
  thread_ = std::thread([this] { run(); });
}

void Heartbeat::failed(const std::string& message) {
  try {
    store_->set(key_of("failed", options_.rank), cat(step_.load(), ": ", message));
  } catch (const std::exception&) {
    // Without the store the others name rank 0, which has it, or see this one fall silent.
  }
}

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_ && store_lost_.empty()) {
    std::optional<std::string> lost;
    try {
      beat();
      look();
      if (options_.on_lost) lost = lost_for_good();
    } catch (const std::exception& error) {
      store_lost_ = error.what();
      if (options_.on_lost) lost = silent_peer(options_.timeout);
    }
    if (lost) return options_.on_lost(*lost);
    wake_.wait_for(lock, interval_);
  }
}

// What the thread ends the process for: silence for the whole time-out, or an error that a peer has left a while ago.
std::optional<std::string> Heartbeat::lost_for_good() {
  constexpr int kPatience = 5;  // beats in which this rank may find out by itself
  if (auto silent = silent_peer(options_.timeout)) return silent;
  auto failed = failed_peer();
  if (failed && ++beats_since_failure_ > kPatience) return failed;
  return std::nullopt;
}

// The lines of all ranks; mutex_ is held.
void Heartbeat::look() {
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.size; ++rank) keys.push_back(key_of("beat", rank));
  const auto lines = store_->multiGet(keys);
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    std::string line(lines[rank].begin(), lines[rank].end());
    if (line == peer.line) continue;
    int64_t beats = 0;
    std::istringstream(line) >> beats >> peer.collectives >> peer.step >> peer.host;
    peer.line = std::move(line);
    peer.heard = Clock::now();
  }
}

// Of the other ranks.
template <typename Less>
const Heartbeat::Peer& Heartbeat::first_by(const Less& less) const {
  const size_t own = static_cast<size_t>(options_.rank);
  size_t first = own == 0 ? 1 : 0;
  for (size_t rank = first + 1; rank < peers_.size(); ++rank) {
    if (rank != own && less(peers_[rank], peers_[first])) first = rank;
  }
  return peers_[first];
}

std::optional<std::string> Heartbeat::failed_peer() {
  for (int rank = 0; rank < options_.size; ++rank) {
    const std::string key = key_of("failed", rank);
    if (rank == options_.rank || !store_->check({key})) continue;
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    return cat("rank ", rank, " on ", peer.host, " ended in step ", store_->get_to_str(key));
  }
  return std::nullopt;
}

std::optional<std::string> Heartbeat::silent_peer(Seconds longer_than) {
  if (!store_lost_.empty()) {
    return cat("the store at ", options_.store_name,
               " no longer answers: rank 0 or the launcher, which serves it, has ended (",
               store_lost_.substr(0, store_lost_.find('\n')), ")");
  }
  const Peer& peer = first_by([](const Peer& a, const Peer& b) { return a.heard < b.heard; });
  const Seconds silence = Clock::now() - peer.heard;
  if (silence <= longer_than) return std::nullopt;
  return cat("rank ", &peer - peers_.data(), " on ", peer.host, " was last heard ", std::lround(silence.count()),
             " s ago in step ", peer.step);
}

// All are alive, and one has not come as far as this one.
std::optional<std::string> Heartbeat::slow_peer() {
  const Peer& peer = first_by([](const Peer& a, const Peer& b) { return a.collectives < b.collectives; });
  if (peer.collectives >= collectives_) return std::nullopt;
  return cat("rank ", &peer - peers_.data(), " on ", peer.host, " is alive in step ", peer.step, ", and rank ",
             options_.rank, " waited for it in step ", step_.load());
}

std::optional<std::string> Heartbeat::find_lost() {
  const auto deadline = Clock::now() + 5 * interval_;
  std::unique_lock lock(mutex_);
  while (true) {
    try {
      if (store_lost_.empty()) {
        look();
        if (auto failed = failed_peer()) return failed;
      }
    } catch (const std::exception& error) {
      store_lost_ = error.what();
    }
    if (auto silent = silent_peer(3 * interval_)) return silent;
    if (Clock::now() >= deadline) return slow_peer();
    wake_.wait_for(lock, interval_ / 4);
  }
}

}  // namespace hotswap
