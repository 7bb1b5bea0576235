#include "hotswap/base/progress.h"

#include <unistd.h>

#include <cstdio>

#include "hotswap/base/env.h"

namespace hotswap {
namespace {
constexpr int kWidth = 24;
constexpr double kTerminalEvery = 0.1, kPlainEvery = 5.0;  // seconds between redraws
using Clock = std::chrono::steady_clock;
double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}
}  // namespace

std::string progress_text(const std::string& title, int64_t done, int64_t total, double seconds,
                          const std::string& note) {
  char numbers[128];
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string text = title + " ";
  if (total > 0) {
    const int filled = static_cast<int>(kWidth * done / total);
    text += '[' + std::string(filled, '#') + std::string(kWidth - filled, '.') + ']';
    const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
    std::snprintf(numbers, sizeof numbers, " %3d%% %lld/%lld %.3g/s %.0fs left", static_cast<int>(100 * done / total),
                  static_cast<long long>(done), static_cast<long long>(total), rate, left);
  } else {
    std::snprintf(numbers, sizeof numbers, "%lld %.3g/s", static_cast<long long>(done), rate);
  }
  text += numbers;
  return note.empty() ? text : text + "  " + note;
}

Progress::Progress(std::string title, int64_t total, bool shown)
    : title_(std::move(title)),
      total_(total),
      shown_(shown),
      terminal_(::isatty(STDERR_FILENO) == 1 && !env(EnvVar::kNoColor)),
      started_(Clock::now()),
      drawn_(started_) {
  if (shown_ && terminal_) draw(false);
}

Progress::~Progress() {
  if (shown_) draw(true);
}

void Progress::advance(int64_t count, const std::string& note) {
  done_ = total_ > 0 ? std::min(total_, done_ + count) : done_ + count;
  note_ = note;
  if (!shown_ || seconds_between(drawn_, Clock::now()) < (terminal_ ? kTerminalEvery : kPlainEvery)) return;
  draw(false);
}

void Progress::draw(bool last) {
  drawn_ = Clock::now();
  const std::string text = progress_text(title_, done_, total_, seconds_between(started_, drawn_), note_);
  std::fprintf(stderr, terminal_ ? "\r%s\x1b[K%s" : "%s%s", text.c_str(), last || !terminal_ ? "\n" : "");
  std::fflush(stderr);
}

}  // namespace hotswap
