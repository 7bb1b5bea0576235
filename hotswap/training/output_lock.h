// One training run a folder: held from before its data are read until it ends. Of a process that dies it is free at
// once, whatever it left there.
//
//   const auto lock = OutputLock::take("out");   // Error where another run writes there
#pragma once

#include <filesystem>
#include <memory>

namespace hotswap {

class OutputLock {
 public:
  // The file in the folder, which is no part of a run's output.
  static constexpr const char* kFile = ".hotswap-training.lock";
  // Makes the folder where there is none. Error, with the process, where another run still has it after `wait` seconds.
  static std::shared_ptr<const OutputLock> take(const std::filesystem::path& folder, double wait = 0);
  ~OutputLock();  // the file is gone then, and a folder that take() made and nothing was written to
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  OutputLock(std::filesystem::path folder, bool made, int fd) : folder_(std::move(folder)), made_(made), fd_(fd) {}
  std::filesystem::path folder_;
  bool made_;
  int fd_;
};

}  // namespace hotswap
