#include "hotswap/cli/child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "hotswap/base/error.h"

extern char** environ;

namespace hotswap {
namespace {

[[noreturn]] void failed(const char* what, int code) {
  throw Error({.wanted = cat(what, " for a child process"), .got = std::strerror(code), .next = "free some resources"});
}

using OnLine = std::function<void(const std::string& line)>;

// both: stderr's lines too.
int run(const std::string& program, std::vector<std::string> words, bool both, const OnLine& on_line) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) failed("a pipe", errno);
  const std::unique_ptr<FILE, int (*)(FILE*)> from(fdopen(ends[0], "r"), &fclose);

  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  if (both) posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t pid = 0;
  std::fflush(nullptr);
  const int code = posix_spawnp(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (code != 0) {
    throw Error({.wanted = "to start " + program, .got = std::strerror(code), .next = "install it, or name another"});
  }

  char* line = nullptr;
  size_t capacity = 0;
  for (ssize_t size; (size = getline(&line, &capacity, from.get())) >= 0;) {
    if (size > 0 && line[size - 1] == '\n') --size;
    on_line(std::string(line, static_cast<size_t>(size)));
  }
  std::free(line);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int run_self(const std::vector<std::string>& arguments, const OnLine& on_line) {
  std::vector<std::string> words{"hotswap"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run("/proc/self/exe", std::move(words), false, on_line);
}

int run_program(const std::vector<std::string>& words, const OnLine& on_line) {
  return run(words.at(0), words, true, on_line);
}

}  // namespace hotswap
