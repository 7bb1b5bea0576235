#include "hotswap/cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hotswap/base/error.h"

extern char** environ;

namespace hotswap {
namespace {

[[noreturn]] void failed(const char* what, int code) {
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat(what, " for a child process"),
               .got = std::strerror(code),
               .next = "free some resources"});
}

int start(const std::string& program, std::vector<std::string> words, const ChildStreams& streams,
          const std::function<void(const std::string& line)>& on_line) {
  Child child(program, std::move(words), streams);
  while (const auto line = child.line()) on_line(*line);
  return child.wait();
}

}  // namespace

Child::Child(const std::string& program, std::vector<std::string> words, const ChildStreams& streams) {
  int out[2], in[2] = {-1, -1};
  if (pipe2(out, O_CLOEXEC) != 0) failed("a pipe", errno);
  from_ = fdopen(out[0], "r");
  // A socket, not a pipe: writing to a child that is gone then is an error and no signal.
  if (streams.input && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0) {
    const int code = errno;
    fclose(from_);
    close(out[1]);
    failed("a socket", code);
  }

  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  if (streams.errors) posix_spawn_file_actions_adddup2(&actions, out[1], STDERR_FILENO);
  if (streams.input) posix_spawn_file_actions_adddup2(&actions, in[1], STDIN_FILENO);
  std::fflush(nullptr);
  const int code = posix_spawnp(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  if (streams.input) close(in[1]);
  to_ = in[0];
  if (code != 0) {
    fclose(from_);
    if (to_ >= 0) close(to_);
    throw Error({.kind = code == ENOENT ? ErrorKind::kNotFound : ErrorKind::kUnavailable,
                 .wanted = "to start " + program,
                 .got = std::strerror(code),
                 .next = "install it, or name another"});
  }
}

Child::~Child() {
  if (pid_ != 0) kill(pid_, SIGTERM);
  wait();
  fclose(from_);
}

std::optional<std::string> Child::line() {
  char* line = nullptr;
  size_t capacity = 0;
  const ssize_t size = getline(&line, &capacity, from_);
  std::optional<std::string> result;
  if (size >= 0) result.emplace(line, static_cast<size_t>(size > 0 && line[size - 1] == '\n' ? size - 1 : size));
  std::free(line);
  return result;
}

void Child::say(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t size = send(to_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return;
    sent += static_cast<size_t>(size);
  }
}

void Child::close_input() {
  if (to_ >= 0) close(to_);
  to_ = -1;
}

int Child::wait() {
  close_input();
  if (pid_ == 0) return 0;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<std::string> self_words(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"hotswap"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

int run_self(const std::vector<std::string>& arguments, const std::function<void(const std::string& line)>& on_line) {
  return start(kSelf, self_words(arguments), {}, on_line);
}

int run_program(const std::vector<std::string>& words, const std::function<void(const std::string& line)>& on_line) {
  return start(words.at(0), words, {.errors = true}, on_line);
}

}  // namespace hotswap
