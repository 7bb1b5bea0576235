#include "hotswap/base/error.h"

#include "hotswap/base/without_nul.h"

namespace hotswap {

const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "invalid argument";
    case ErrorKind::kNotFound:
      return "not found";
    case ErrorKind::kCorrupt:
      return "corrupt";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kUnavailable:
      return "unavailable";
    case ErrorKind::kInternal:
      break;
  }
  return "internal";
}

NextStep::NextStep(std::string text)
    : text_(text.empty() ? "report it: this error of hotswap lacks its next step" : std::move(text)) {}

Error::Error(ErrorText text)
    : std::runtime_error(without_nul("expected " + text.wanted + "; got " + text.got + "; " + text.next.str())),
      text_(std::move(text)) {}

Error::~Error() = default;

CatPart::CatPart(const char* text)
    : value(text), print([](std::ostream& out, const void* value) { out << static_cast<const char*>(value); }) {}

std::string cat_parts(std::initializer_list<CatPart> parts) {
  std::ostringstream out;
  for (const CatPart& part : parts) part.print(out, part.value);
  return out.str();
}

}  // namespace hotswap
