// The one exception of hotswap. It says what was wanted, what came, and what to do next:
//
//   throw Error({.wanted = "a tensor 'model.norm.weight' of shape [64]", .got = "shape [32] in model.safetensors",
//                .next = "check that config.json and the weights belong together"});
//
// For outcomes that a caller expects (a file that may be absent), return Result (result.h) or std::optional instead.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace hotswap {

struct ErrorText {
  std::string wanted;  // what would have been right
  std::string got;     // what came, with its place: file, key, value
  std::string next;    // what the reader can do about it; may be empty where nothing can be done
};

class Error : public std::runtime_error {
 public:
  explicit Error(ErrorText text)
      : std::runtime_error("wanted " + text.wanted + "; got " + text.got + (text.next.empty() ? "" : "; " + text.next)),
        text_(std::move(text)) {}
  const std::string& wanted() const { return text_.wanted; }
  const std::string& got() const { return text_.got; }
  const std::string& next() const { return text_.next; }

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
