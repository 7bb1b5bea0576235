#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {

const char* TemplateError::name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kSyntax:
      return "syntax error";
    case ErrorKind::kUndefined:
      return "undefined value";
    case ErrorKind::kType:
      return "type error";
    case ErrorKind::kValue:
      return "value error";
    case ErrorKind::kSecurity:
      return "refused by the sandbox";
    case ErrorKind::kRaised:
      return "raised by the template";
    case ErrorKind::kLimit:
      return "limit exceeded";
    case ErrorKind::kUnsupported:
      return "unsupported";
  }
  return "error";
}

NextStep TemplateError::next_step(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kSyntax:
      return "correct the template";
    case ErrorKind::kRaised:
      return "change the messages as the template's error requires";
    case ErrorKind::kLimit:
      return "shorten the messages or the template";
    case ErrorKind::kUnsupported:
      return "write the template without it";
    default:
      return "check that the messages have the fields that the template reads";
  }
}

}  // namespace hotswap::jinja
