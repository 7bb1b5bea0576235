// Bounds of one rendering. A template comes with a downloaded model and is not trusted: each bound ends in an error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hotswap::jinja {

struct Limits {
  size_t template_bytes = 1 << 20;
  int nesting = 200;               // of expressions and of statements in the parser
  int expression_depth = 1000;     // of one expression's tree
  int macro_depth = 200;           // macros that call macros
  int evaluation_depth = 2500;     // expressions and statements that are evaluated inside each other
  int value_depth = 500;           // lists in lists
  int64_t nodes = 20'000'000;      // evaluated expressions and statements
  size_t string_bytes = 64 << 20;  // one string
  size_t value_bytes = 256 << 20;  // all strings, lists and dicts that live at one time
  size_t output_bytes = 64 << 20;
  std::chrono::milliseconds time{0};  // 0: no limit
};

// Memory of the values of the rendering that this thread is in. Constants of a template are outside of any.
class Budget {
 public:
  explicit Budget(const Limits& limits);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  static Budget* current();
  const Limits& limits() const { return limits_; }
  void take(size_t bytes);  // throws where the sum exceeds value_bytes
  void give_back(size_t bytes) { used_ -= bytes; }
  void check_string(size_t bytes) const;  // before a string of that size is made

 private:
  const Limits& limits_;
  size_t used_ = 0;
  Budget* outer_;
};

// The bytes of one value, counted as long as it lives.
class Counted {
 public:
  explicit Counted(size_t bytes);
  ~Counted();
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  Budget* budget_;
  size_t bytes_;
};

}  // namespace hotswap::jinja
