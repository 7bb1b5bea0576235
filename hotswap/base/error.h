// The one exception of hotswap. It says what was expected, what came, and what to do next; its kind is for programs:
//
//   throw Error({.kind = ErrorKind::kCorrupt,
//                .wanted = "a tensor 'model.norm.weight' of shape [64]", .got = "shape [32] in model.safetensors",
//                .next = "check that config.json and the weights belong together"});
//
// For outcomes that a caller expects (a file that may be absent), return Result (result.h) or std::optional instead.
#pragma once

#include <concepts>
#include <sstream>
#include <stdexcept>
#include <string>

namespace hotswap {

// What a program can do about it. Exit statuses follow from it: docs/errors.md has the table.
enum class ErrorKind {
  kInvalidArgument,  // an argument, option or setting is wrong, or a call comes in a state that forbids it
  kNotFound,         // what was named does not exist: a file, a model, a revision, a layer, a key
  kCorrupt,          // a file, package or answer is not what its format, digest or signature promises
  kUnsupported,      // valid, but not implemented here, or not by this kernel
  kUnavailable,      // something outside failed: network, Hub, device, memory, disk; later the same call may succeed
  kInternal,         // a fault of hotswap itself
};
const char* name_of(ErrorKind kind);  // "invalid argument", "not found", ...

// An Error's kind has no default: one without it does not compile.
class RequiredKind {
 public:
  RequiredKind(ErrorKind kind) : kind_(kind) {}  // NOLINT(google-explicit-constructor)
  operator ErrorKind() const { return kind_; }   // NOLINT(google-explicit-constructor)

 private:
  ErrorKind kind_;
};

// What the reader can do about it. There is always something, if only whom to ask: an Error without one, or with "",
// does not compile; where the text is made at run time and empty, the reader is told to report it.
class NextStep {
 public:
  template <size_t N>
  NextStep(const char (&text)[N]) : text_(text) {  // NOLINT(google-explicit-constructor)
    static_assert(N > 1, "say what to do next");
  }
  template <std::same_as<const char*> Text>
  NextStep(Text text) : NextStep(std::string(text)) {}  // NOLINT(google-explicit-constructor)
  NextStep(std::string text)                            // NOLINT(google-explicit-constructor)
      : text_(text.empty() ? "report it: this error of hotswap lacks its next step" : std::move(text)) {}
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

struct ErrorText {
  RequiredKind kind;
  std::string wanted;  // what would have been right
  std::string got;     // what came, with its place: file, key, value
  NextStep next;       // what the reader can do about it
};

class Error : public std::runtime_error {
 public:
  explicit Error(ErrorText text)
      : std::runtime_error("expected " + text.wanted + "; got " + text.got + "; " + text.next.str()),
        text_(std::move(text)) {}
  ErrorKind kind() const { return text_.kind; }
  const std::string& wanted() const { return text_.wanted; }
  const std::string& got() const { return text_.got; }
  const std::string& next() const { return text_.next.str(); }

 private:
  ErrorText text_;
};

// cat("layer ", 3, " of ", n): everything that has operator<<, as one string.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// join({"a", "b"}) == "a, b"
template <typename Range>
std::string join(const Range& parts, const char* separator = ", ") {
  std::ostringstream out;
  const char* before = "";
  for (const auto& part : parts) {
    out << before << part;
    before = separator;
  }
  return out.str();
}

}  // namespace hotswap
