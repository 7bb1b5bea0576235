// This program again, as a process of its own: what it allocates is its own, and its peak memory is honest.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace hotswap {

struct ChildStreams {
  bool input = false;   // say() reaches its stdin; else it shares ours
  bool errors = false;  // line() gives stderr's lines too; else it shares ours
};

// A process that runs beside this one. Where wait() did not see its end, the destructor ends it.
class Child {
 public:
  // `program` is a path, or is found on PATH; words[0] is the name that it sees. No shell.
  Child(const std::string& program, std::vector<std::string> words, const ChildStreams& streams);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  std::optional<std::string> line();  // the next one of its stdout; none: it has closed it
  void say(const std::string& line);  // nothing where it is gone: line() and wait() tell that
  void close_input();                 // its stdin ends
  int wait();                         // its exit status; 128 + n when signal n ended it

 private:
  pid_t pid_ = 0;
  FILE* from_ = nullptr;
  int to_ = -1;
};

std::vector<std::string> self_words(const std::vector<std::string>& arguments);  // of `hotswap ARGS...`
inline constexpr const char* kSelf = "/proc/self/exe";

// Runs `hotswap ARGS...`; each line of its stdout goes to on_line as it comes, stderr is shared. Returns its exit
// status.
int run_self(const std::vector<std::string>& arguments, const std::function<void(const std::string& line)>& on_line);

// Any program, found on PATH: words[0] and its arguments. on_line gets each line of stdout and stderr.
int run_program(const std::vector<std::string>& words, const std::function<void(const std::string& line)>& on_line);

}  // namespace hotswap
