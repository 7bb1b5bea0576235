// A progress bar on stderr: a moving bar with rate and time left on a terminal, a plain line every few seconds
// elsewhere.
//
//   Progress bar("train", steps);
//   for (int64_t step = 0; step < steps; ++step) bar.advance(1, cat("loss ", loss));
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace hotswap {

class Progress {
 public:
  // total 0: unknown. `shown` false makes every call a no-op.
  Progress(std::string title, int64_t total, bool shown = true);
  ~Progress();  // leaves the finished bar on its line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(int64_t count = 1, const std::string& note = "");

 private:
  void draw(bool last);
  std::string title_, note_;
  int64_t total_, done_ = 0;
  bool shown_, terminal_;
  std::chrono::steady_clock::time_point started_, drawn_;
};

// "[#####.....] 50% 12/24 3.1/s 4s left  loss 2.1", the text of one bar; seconds since the start.
std::string progress_text(const std::string& title, int64_t done, int64_t total, double seconds,
                          const std::string& note);

}  // namespace hotswap
