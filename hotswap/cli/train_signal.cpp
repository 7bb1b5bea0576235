#include "hotswap/cli/train_signal.h"

#include <atomic>
#include <csignal>

namespace hotswap {
namespace {

std::atomic<bool> term_came = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

}  // namespace

StopOnSignal::StopOnSignal() {
  std::signal(SIGTERM, [](int) { term_came = true; });
}

StopOnSignal::~StopOnSignal() { std::signal(SIGTERM, SIG_DFL); }

void StopOnSignal::on_step_end(const TrainerEvent& event) {
  if (term_came) event.control.should_training_stop = event.control.should_save = true;
}

}  // namespace hotswap
