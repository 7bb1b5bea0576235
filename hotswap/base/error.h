// The one exception of hotswap. It says what was expected, what came, and what to do next; its kind is for programs:
//
//   throw Error({.kind = ErrorKind::kCorrupt,
//                .wanted = "a tensor 'model.norm.weight' of shape [64]", .got = "shape [32] in model.safetensors",
//                .next = "check that config.json and the weights belong together"});
//
// For outcomes that a caller expects (a file that may be absent), return Result (result.h) or std::optional instead.
#pragma once

#include <concepts>
#include <initializer_list>
#include <ostream>
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
  NextStep(const char (&text)[N]) : NextStep(std::string(text)) {  // NOLINT(google-explicit-constructor)
    static_assert(N > 1, "say what to do next");
  }
  template <std::same_as<const char*> Text>
  NextStep(Text text) : NextStep(std::string(text)) {}  // NOLINT(google-explicit-constructor)
  NextStep(std::string text);                           // NOLINT(google-explicit-constructor)
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
  explicit Error(ErrorText text);
  Error(const Error&) = default;
  ~Error() override;
  ErrorKind kind() const { return text_.kind; }
  const std::string& wanted() const { return text_.wanted; }
  const std::string& got() const { return text_.got; }
  const std::string& next() const { return text_.next.str(); }

 private:
  ErrorText text_;
};

// What cat() prints, by its operator<<. Values are of a few types, calls of as many as there are messages: so what is
// compiled for a type prints it, and what is compiled for a call only lists its parts.
struct CatPart {
  template <typename T>
  CatPart(const T& part)  // NOLINT(google-explicit-constructor)
      : value(&part), print([](std::ostream& out, const void* value) { out << *static_cast<const T*>(value); }) {}
  CatPart(const char* text);  // NOLINT(google-explicit-constructor)

  const void* value;
  void (*print)(std::ostream& out, const void* value);
};
std::string cat_parts(std::initializer_list<CatPart> parts);

// cat("layer ", 3, " of ", n): everything that has operator<<, as one string.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  return cat_parts({CatPart(parts)...});
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
