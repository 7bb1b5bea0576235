#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {

ErrorKind TemplateError::kind_of(Fault fault) {
  switch (fault) {
    case Fault::kSyntax:
      return ErrorKind::kCorrupt;
    case Fault::kUnsupported:
      return ErrorKind::kUnsupported;
    default:
      return ErrorKind::kInvalidArgument;  // the template refuses these messages
  }
}

const char* TemplateError::name(Fault fault) {
  switch (fault) {
    case Fault::kSyntax:
      return "syntax error";
    case Fault::kUndefined:
      return "undefined value";
    case Fault::kType:
      return "type error";
    case Fault::kValue:
      return "value error";
    case Fault::kSecurity:
      return "refused by the sandbox";
    case Fault::kRaised:
      return "raised by the template";
    case Fault::kLimit:
      return "limit exceeded";
    case Fault::kUnsupported:
      return "unsupported";
  }
  return "error";
}

NextStep TemplateError::next_step(Fault fault) {
  switch (fault) {
    case Fault::kSyntax:
      return "correct the template";
    case Fault::kRaised:
      return "change the messages as the template's error requires";
    case Fault::kLimit:
      return "shorten the messages or the template";
    case Fault::kUnsupported:
      return "write the template without it";
    default:
      return "check that the messages have the fields that the template reads";
  }
}

}  // namespace hotswap::jinja
