// One call of a tool, byte by byte, in any of the forms of tool_formats.h. Its arguments come as soon as its name is
// known: those of an object as they are written, those of the other forms one whole argument after another.
#pragma once

#include <string>

#include "hotswap/serve/tool_formats.h"

namespace hotswap::serve {

class CallScanner {
 public:
  enum class State { kGoing, kDone, kFailed };
  CallScanner(const ToolFormat& format, const TypedParameters& typed) : format_(&format), typed_(&typed) {}
  State push(char c);
  State state() const { return state_; }
  bool has_name() const { return has_name_; }
  const std::string& name() const { return name_; }
  const std::string& arguments() const { return arguments_; }  // so far; complete once done
  bool whole_arguments_only() const { return quoted_; }        // JSON within a text: known at its end
  bool is_python() const { return form_ == Form::kPython; }

 private:
  enum class Form { kUnknown, kObject, kNamed, kParameters, kKeys, kPython };
  enum class Step { kOpen, kKey, kInKey, kColon, kValue, kInValue, kAfterValue };
  enum class Part { kFunction, kBetween, kKey, kBeforeValue, kValue };
  void choose_form(char c);
  void object(char c);
  void named(char c);
  void parameters(char c);
  void keys(char c);
  void expect(std::string_view tag, Part then, bool or_end);
  void python(char c);
  void end_python_argument(bool last);
  void add_argument(const std::string& json);
  std::string json_of(std::string_view text) const;
  void end_arguments();
  void value(char c);
  void end_value();
  State fail() { return state_ = State::kFailed; }
  const ToolFormat* format_;
  const TypedParameters* typed_;
  State state_ = State::kGoing;
  Form form_ = Form::kUnknown;
  Step step_ = Step::kOpen;
  Part part_ = Part::kFunction;
  std::string head_;  // before the arguments of a named call; of the forms with whole arguments: what was not read yet
  std::string key_, raw_, name_, arguments_;
  bool has_name_ = false, has_arguments_ = false, quoted_ = false, in_list_ = false;
  bool in_text_ = false, escaped_ = false;
  char quote_ = 0;  // that began a text of Python's
  int depth_ = 0;   // within the value
};

}  // namespace hotswap::serve
