// Why a template has no text: what Python's jinja2 would have raised, as one exception of ours.
#pragma once

#include <string>

#include "hotswap/base/error.h"

namespace hotswap::jinja {

// What jinja2 would have raised: finer than an Error's kind.
enum class Fault {
  kSyntax,       // the template does not parse
  kUndefined,    // an operation on a value that is missing
  kType,         // an operation on a value of the wrong type
  kValue,        // right type, wrong value: division by zero, an index, a format
  kSecurity,     // what the sandbox refuses
  kRaised,       // the template called raise_exception(message)
  kLimit,        // one of Limits
  kUnsupported,  // jinja2 has it, this engine does not
};

class TemplateError : public Error {
 public:
  // line: of the template, from 1 on; 0 where it is not known yet.
  TemplateError(Fault fault, std::string message, int line = 0)
      : Error({.kind = kind_of(fault),
               .wanted = "a chat template that renders these messages",
               .got = cat(name(fault), ": ", message, line > 0 ? cat(" (line ", line, " of the template)") : ""),
               .next = next_step(fault)}),
        fault_(fault),
        line_(line),
        message_(std::move(message)) {}

  Fault fault() const { return fault_; }
  int line() const { return line_; }
  const std::string& message() const { return message_; }  // for kRaised the template's own text

 private:
  static ErrorKind kind_of(Fault fault);
  static const char* name(Fault fault);
  static NextStep next_step(Fault fault);

  Fault fault_;
  int line_;
  std::string message_;
};

[[noreturn]] inline void fail(Fault fault, std::string message) { throw TemplateError(fault, std::move(message)); }
[[noreturn]] inline void type_error(std::string message) { fail(Fault::kType, std::move(message)); }
[[noreturn]] inline void value_error(std::string message) { fail(Fault::kValue, std::move(message)); }

}  // namespace hotswap::jinja
