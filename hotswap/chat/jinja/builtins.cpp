// Filters of numbers, tests, and global functions.
#include "hotswap/chat/jinja/builtins.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "hotswap/chat/jinja/arithmetic.h"
#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/interpreter.h"
#include "hotswap/chat/jinja/iterate.h"
#include "hotswap/chat/jinja/parameters.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

// ---- numbers ----------------------------------------------------------------------------------------------------

Value absolute(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("abs", arguments, {});
  if (input.is_undefined()) fail_undefined(input);
  if (input.is(Kind::kFloat)) return Value::real(std::fabs(input.as_float()));
  if (!input.is_integer()) type_error(cat("bad operand type for abs(): '", type_name(input), "'"));
  return input.as_int() < 0 ? negate(input) : Value::integer(input.as_int());
}

Value to_int(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("int", arguments, {"default", "base"});
  if (input.is_undefined()) fail_undefined(input);
  if (input.is_integer()) return Value::integer(input.as_int());
  if (input.is(Kind::kBigInt)) return input;
  const Value otherwise = p.get(0, Value::integer(0));
  if (input.is(Kind::kFloat)) {
    return std::isfinite(input.as_float()) ? Value::integer(float_to_int(input.as_float())) : otherwise;
  }
  if (!input.is_string()) return otherwise;
  const int64_t base = p.integer(1, 10);
  if (base == 0 || (base >= 2 && base <= 36)) {
    if (const auto value = parse_int(input.str(), base)) return Value::integer(*value);
  }
  bool ok = false;
  const double value = parse_float_or(input.str(), &ok);
  return ok && std::isfinite(value) ? Value::integer(float_to_int(value)) : otherwise;
}

Value to_float(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("float", arguments, {"default"});
  if (input.is_undefined()) fail_undefined(input);
  if (input.is_number()) return Value::real(input.as_float());
  bool ok = false;
  const double value = input.is_string() ? parse_float_or(input.str(), &ok) : 0;
  return ok ? Value::real(value) : p.get(0, Value::real(0));
}

Value round_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("round", arguments, {"precision", "method"});
  const std::string how = p.text(1, "common");
  if (how != "common" && how != "ceil" && how != "floor") value_error("method must be common, ceil or floor");
  const int64_t precision = p.integer(0, 0);
  if (how == "common") return round_number(input, precision);
  const Value unit = apply(Operator::kPower, Value::integer(10), Value::integer(precision));
  const Value scaled = apply(Operator::kMultiply, input, unit);
  if (!scaled.is_number()) type_error(cat("must be real number, not ", type_name(scaled)));
  const double value = scaled.as_float();
  const int64_t whole =
      scaled.is_integer() ? scaled.as_int() : float_to_int(how == "ceil" ? std::ceil(value) : std::floor(value));
  return apply(Operator::kDivide, Value::integer(whole), unit);
}

Value filesizeformat(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("filesizeformat", arguments, {"binary"});
  const bool binary = p.truth(0, false);
  if (input.is_undefined()) fail_undefined(input);
  bool ok = input.is_number();
  const double bytes = ok ? input.as_float() : input.is_string() ? parse_float_or(input.str(), &ok) : 0;
  if (!ok) value_error(cat("could not convert to float: ", repr(input)));
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::string("1 Byte");
  if (bytes < base) return Value::string(cat(float_to_int(bytes), " Bytes"));
  constexpr const char* kUnits[] = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
  double unit = base * base;
  size_t at = 0;
  for (; at < 7 && bytes >= unit; ++at) unit *= base;
  char buffer[400];
  std::snprintf(buffer, sizeof(buffer), "%.1f ", base * bytes / unit);
  const std::string letter = binary && at == 0 ? "K" : kUnits[at];
  return Value::string(buffer + letter + (binary ? "iB" : "B"));
}

// ---- tests ------------------------------------------------------------------------------------------------------

template <bool (*holds)(const Value&)>
bool plain(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("test", arguments, {});
  return holds(input);
}

template <typename Holds>
bool with_other(const Value& input, const Arguments& arguments, Holds holds) {
  const Parameters p("test", arguments, {"other"}, 1);
  return holds(input, p.at(0));
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is(Kind::kNone); }
bool is_boolean(const Value& v) { return v.is(Kind::kBool); }
bool is_true(const Value& v) { return v.is(Kind::kBool) && v.as_bool(); }
bool is_false(const Value& v) { return v.is(Kind::kBool) && !v.as_bool(); }
bool is_integer(const Value& v) { return v.is(Kind::kInt) || v.is(Kind::kBigInt); }
bool is_float(const Value& v) { return v.is(Kind::kFloat); }
bool is_number(const Value& v) { return v.is_number() || v.is(Kind::kBigInt); }
bool is_text(const Value& v) { return v.is_string(); }
bool is_mapping(const Value& v) { return v.is(Kind::kDict); }
bool is_callable(const Value& v) { return v.is(Kind::kCallable) || v.is(Kind::kLoop) || v.is_undefined(); }
bool is_escaped(const Value& v) { return v.is_string() && v.text().markup; }
bool is_sequence(const Value& v) {
  return v.is_string() || v.is(Kind::kList) || v.is(Kind::kTuple) || v.is(Kind::kDict) || v.is(Kind::kRange) ||
         v.is_undefined();
}

bool is_one_case(const Value& input, bool upper) {
  bool found = false;
  for (const char32_t c : decode(str(input))) {
    if (is_title(c) || (upper ? jinja::is_lower(c) : jinja::is_upper(c))) return false;
    found = found || (upper ? jinja::is_upper(c) : jinja::is_lower(c));
  }
  return found;
}
bool is_lower_text(const Value& v) { return is_one_case(v, false); }
bool is_upper_text(const Value& v) { return is_one_case(v, true); }

bool remainder_is(const Value& value, const Value& divisor, int64_t rest) {
  return equal(apply(Operator::kModulo, value, divisor), Value::integer(rest));
}
bool is_odd(const Value& v) { return remainder_is(v, Value::integer(2), 1); }
bool is_even(const Value& v) { return remainder_is(v, Value::integer(2), 0); }

template <bool (*holds)(const Value&, const Value&)>
bool compared(Interpreter&, const Value& input, const Arguments& arguments) {
  return with_other(input, arguments, holds);
}

bool divisible(const Value& a, const Value& b) { return remainder_is(a, b, 0); }
bool unequal(const Value& a, const Value& b) { return !equal(a, b); }
bool less_than(const Value& a, const Value& b) { return less(a, b); }
bool at_most(const Value& a, const Value& b) { return less_equal(a, b); }
bool greater(const Value& a, const Value& b) { return less(b, a, ">"); }
bool at_least(const Value& a, const Value& b) { return less_equal(b, a, ">="); }
bool in(const Value& a, const Value& b) { return contains(b, a); }

bool names_filter(const Value& v) { return v.is_string() && filter_exists(v.str()); }
bool names_test(const Value& v) { return v.is_string() && test_exists(v.str()); }

// ---- functions --------------------------------------------------------------------------------------------------

constexpr int64_t kLongestRange = 100'000;  // of jinja2's sandbox

Value range(Interpreter&, Arguments& arguments) {
  const Parameters p("range", arguments, {"start", "stop", "step"}, 1);
  Range range{0, p.integer(0, 0), p.integer(2, 1)};
  if (p.given(1)) range = {range.stop, p.integer(1, 0), range.step};
  if (range.step == 0) value_error("range() arg 3 must not be zero");
  if (range.size() > kLongestRange)
    value_error("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  return Value::range(range);
}

Dict make_dict(const Arguments& arguments) {
  if (arguments.positional.size() > 1) type_error("dict expected at most 1 argument");
  Dict out;
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is(Kind::kDict)) {
      out = Dict(from.dict()->entries);
    } else {
      Iterator pairs(from);
      while (const auto pair = pairs.next()) {
        const std::vector<Value> two = to_vector(*pair);
        if (two.size() != 2) value_error("dictionary update sequence elements have length 2");
        out.set(two[0], two[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) out.set(Value::string(name), value);
  return out;
}

Value cycler(Interpreter&, Arguments& arguments) {
  if (arguments.positional.empty()) type_error("at least one item has to be provided");
  if (!arguments.named.empty()) type_error("cycler() takes no keyword arguments");
  const auto at = std::make_shared<size_t>(0);
  const auto items = std::make_shared<std::vector<Value>>(arguments.positional);
  const auto method = [](const char* name, std::function<Value()> call) {
    return Value::callable(
        {.call = [call = std::move(call)](Interpreter&, Arguments&) -> Value { return call(); }, .name = name});
  };
  return Value::callable(
      {.call = [](Interpreter&, Arguments&) -> Value { type_error("'Cycler' object is not callable"); },
       .name = "jinja2.utils.Cycler object",
       .attribute = [=](std::string_view name) -> std::optional<Value> {
         if (name == "current") return (*items)[*at];
         if (name == "pos") return Value::integer(static_cast<int64_t>(*at));
         if (name == "items") return Value::tuple(*items);
         if (name == "next") {
           return method("bound method Cycler.next", [=] {
             const Value now = (*items)[*at];
             *at = (*at + 1) % items->size();
             return now;
           });
         }
         if (name == "reset") {
           return method("bound method Cycler.reset", [=] {
             *at = 0;
             return Value::none();
           });
         }
         return std::nullopt;
       }});
}

Value joiner(Interpreter&, Arguments& arguments) {
  const Parameters p("joiner", arguments, {"sep"});
  return Value::callable({.call = [separator = p.get(0, Value::string(", ")), used = std::make_shared<bool>(false)](
                                      Interpreter&, Arguments&) -> Value {
                            return std::exchange(*used, true) ? separator : Value::string("");
                          },
                          .name = "jinja2.utils.Joiner object"});
}

Value raise_exception(Interpreter&, Arguments& arguments) {
  const Parameters p("raise_exception", arguments, {"message"}, 1);
  fail(Fault::kRaised, str(p.at(0)));
}

Value strftime_now(Interpreter&, Arguments& arguments) {
  const Parameters p("strftime_now", arguments, {"format"}, 1);
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
  char digits[8];
  std::snprintf(digits, sizeof(digits), "%06lld", static_cast<long long>(micros));
  std::tm local{};
  localtime_r(&seconds, &local);
  const std::string& asked = p.text(0);
  std::string format;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (asked[i] == '%' && i + 1 < asked.size()) {
      ++i;
      format += asked[i] == 'f' ? std::string(digits) : std::string("%") + asked[i];
    } else {
      format += asked[i];
    }
  }
  std::string out(format.size() * 8 + 256, '\0');
  out.resize(format.empty() ? 0 : std::strftime(out.data(), out.size(), format.c_str(), &local));
  return Value::string(tokenizers::utf8_lossy(out));
}

}  // namespace

const Filters& number_filters() {
  static const Filters all = {{"abs", absolute},
                              {"filesizeformat", filesizeformat},
                              {"float", to_float},
                              {"int", to_int},
                              {"round", round_filter}};
  return all;
}

const Tests& tests() {
  static const Tests all = {{"!=", compared<unequal>},
                            {"<", compared<less_than>},
                            {"<=", compared<at_most>},
                            {"==", compared<equal>},
                            {">", compared<greater>},
                            {">=", compared<at_least>},
                            {"boolean", plain<is_boolean>},
                            {"callable", plain<is_callable>},
                            {"defined", plain<is_defined>},
                            {"divisibleby", compared<divisible>},
                            {"eq", compared<equal>},
                            {"equalto", compared<equal>},
                            {"escaped", plain<is_escaped>},
                            {"even", plain<is_even>},
                            {"false", plain<is_false>},
                            {"filter", plain<names_filter>},
                            {"float", plain<is_float>},
                            {"ge", compared<at_least>},
                            {"greaterthan", compared<greater>},
                            {"gt", compared<greater>},
                            {"in", compared<in>},
                            {"integer", plain<is_integer>},
                            {"iterable", plain<iterable>},
                            {"le", compared<at_most>},
                            {"lessthan", compared<less_than>},
                            {"lower", plain<is_lower_text>},
                            {"lt", compared<less_than>},
                            {"mapping", plain<is_mapping>},
                            {"ne", compared<unequal>},
                            {"none", plain<is_none>},
                            {"number", plain<is_number>},
                            {"odd", plain<is_odd>},
                            {"sameas", compared<identical>},
                            {"sequence", plain<is_sequence>},
                            {"string", plain<is_text>},
                            {"test", plain<names_test>},
                            {"true", plain<is_true>},
                            {"undefined", plain<is_undefined>},
                            {"upper", plain<is_upper_text>}};
  return all;
}

Filter find_filter(std::string_view name) {
  for (const Filters* filters : {&text_filters(), &list_filters(), &number_filters()}) {
    if (const auto found = filters->find(name); found != filters->end()) return found->second;
  }
  fail(Fault::kType, cat("No filter named '", name, "' found."));
}

Test find_test(std::string_view name) {
  const auto found = tests().find(name);
  if (found == tests().end()) fail(Fault::kType, cat("No test named '", name, "' found."));
  return found->second;
}

bool filter_exists(std::string_view name) {
  return text_filters().contains(name) || list_filters().contains(name) || number_filters().contains(name);
}
bool test_exists(std::string_view name) { return tests().contains(name); }

Value find_global(std::string_view name) {
  using Function = Value (*)(Interpreter&, Arguments&);
  static const std::map<std::string, Function, std::less<>> functions = {
      {"range", range},
      {"dict", [](Interpreter&, Arguments& a) { return Value::dict(make_dict(a)); }},
      {"namespace", [](Interpreter& i, Arguments& a) { return i.keep(Value::new_namespace(make_dict(a))); }},
      {"cycler", cycler},
      {"joiner", joiner},
      {"lipsum", [](Interpreter&, Arguments&) -> Value { fail(Fault::kUnsupported, "the function lipsum"); }},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now}};
  const auto found = functions.find(name);
  if (found == functions.end()) return {};
  const std::string_view class_name = name == "namespace" ? "class 'jinja2.utils.Namespace'"
                                      : name == "cycler"  ? "class 'jinja2.utils.Cycler'"
                                      : name == "joiner"  ? "class 'jinja2.utils.Joiner'"
                                      : name == "dict"    ? "class 'dict'"
                                                          : "";
  return Value::callable(
      {.call = found->second, .name = class_name.empty() ? cat("function ", name) : std::string(class_name)});
}

}  // namespace hotswap::jinja
