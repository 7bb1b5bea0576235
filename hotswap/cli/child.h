// This program again, as a process of its own: what it allocates is its own, and its peak memory is honest.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace hotswap {

// Runs `hotswap ARGS...`; each line of its stdout goes to on_line as it comes, stderr is shared. Returns its exit
// status; 128 + n when signal n ended it.
int run_self(const std::vector<std::string>& arguments, const std::function<void(const std::string& line)>& on_line);

// Any program, found on PATH: words[0] and its arguments, no shell. on_line gets each line of stdout and stderr.
int run_program(const std::vector<std::string>& words, const std::function<void(const std::string& line)>& on_line);

}  // namespace hotswap
