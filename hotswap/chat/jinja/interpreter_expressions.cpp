#include <cmath>

#include "hotswap/chat/jinja/attributes.h"
#include "hotswap/chat/jinja/builtins.h"
#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/interpreter.h"
#include "hotswap/chat/jinja/iterate.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {

void Interpreter::tick() {
  if (++steps_ > limits_.nodes) fail(Fault::kLimit, cat("more than ", limits_.nodes, " evaluated expressions"));
  if (limits_.time.count() > 0 && steps_ % 1024 == 0 && std::chrono::steady_clock::now() > deadline_) {
    fail(Fault::kLimit, cat("rendering takes longer than ", limits_.time.count(), " ms"));
  }
}

Value Interpreter::evaluate(const Expression& node, Frame& frame) {
  const Depth depth(*this);
  tick();
  return evaluate_node(node, frame);
}

Value Interpreter::evaluate_node(const Expression& node, Frame& frame) {
  const auto child = [&](size_t i) { return evaluate(*node.children[i], frame); };
  switch (node.kind) {
    case ExpressionKind::kConstant:
      return node.value;
    case ExpressionKind::kName:
      return evaluate_name(node, frame);
    case ExpressionKind::kTuple:
      return Value::tuple(evaluate_all(node.children, frame));
    case ExpressionKind::kList:
      return Value::list(evaluate_all(node.children, frame));
    case ExpressionKind::kDict:
      return evaluate_dict(node, frame);
    case ExpressionKind::kAttribute:
      return get_attribute(*this, child(0), node.name);
    case ExpressionKind::kItem:
    case ExpressionKind::kSlice:
      return evaluate_item(node, frame);
    case ExpressionKind::kCall: {
      const Value callable = child(0);
      Arguments arguments = evaluate(node.arguments, frame);
      return call(callable, arguments);
    }
    case ExpressionKind::kFilter:
      return evaluate_filter(node, frame);
    case ExpressionKind::kTest: {
      const Value input = child(0);
      return Value::boolean(call_test(node.name, input, evaluate(node.arguments, frame)));
    }
    case ExpressionKind::kConditional:
      if (truthy(child(0))) return child(1);
      if (node.children[2]) return child(2);
      return Value::undefined(
          cat("the inline if-expression on line ", node.line, " evaluated to false and no else section was defined."));
    case ExpressionKind::kAnd: {
      Value left = child(0);
      return truthy(left) ? child(1) : left;
    }
    case ExpressionKind::kOr: {
      Value left = child(0);
      return truthy(left) ? left : child(1);
    }
    case ExpressionKind::kNot:
      return Value::boolean(!truthy(child(0)));
    case ExpressionKind::kCompare:
      return evaluate_compare(node, frame);
    case ExpressionKind::kBinary: {
      const Value left = child(0), right = child(1);
      const bool sign_last = node.folded && left.is_number() && std::signbit(left.as_float());
      return sign_last ? negate(apply(node.op, negate(left), right)) : apply(node.op, left, right);
    }
    case ExpressionKind::kConcat:
      return evaluate_concat(node, frame);
    case ExpressionKind::kNegate:
      return negate(child(0));
    case ExpressionKind::kPlus:
      return plus(child(0));
    case ExpressionKind::kNamespaceRef:
      break;
  }
  fail(Fault::kSyntax, "an assignment target in an expression");
}

Value Interpreter::evaluate_name(const Expression& node, Frame& frame) {
  const Value& value = variable(frame, node.variable);
  return value.missing() ? Value::undefined(cat("'", node.name, "' is undefined")) : value;
}

Value Interpreter::evaluate_item(const Expression& node, Frame& frame) {
  const Value object = evaluate(*node.children[0], frame);
  if (node.kind == ExpressionKind::kItem) return get_item(*this, object, evaluate(*node.children[1], frame));
  const auto bound = [&](size_t i) { return node.children[i] ? evaluate(*node.children[i], frame) : Value::none(); };
  const Value start = bound(1), stop = bound(2), step = bound(3);
  if (node.folded && !sliceable(object)) return undefined_attribute(object, Value::string("slice"));
  return slice(object, start, stop, step);
}

Value Interpreter::evaluate_dict(const Expression& node, Frame& frame) {
  Dict dict;
  for (size_t i = 0; i < node.children.size(); i += 2) {
    const Value key = evaluate(*node.children[i], frame);
    dict.set(key, evaluate(*node.children[i + 1], frame));
  }
  return Value::dict(std::move(dict));
}

Value Interpreter::evaluate_compare(const Expression& node, Frame& frame) {
  Value left = evaluate(*node.children[0], frame);
  for (size_t i = 0; i < node.comparisons.size(); ++i) {
    Value right = evaluate(*node.children[i + 1], frame);
    bool holds = false;
    switch (node.comparisons[i]) {
      case Comparison::kEqual:
        holds = equal(left, right);
        break;
      case Comparison::kNotEqual:
        holds = !equal(left, right);
        break;
      case Comparison::kLess:
        holds = less(left, right);
        break;
      case Comparison::kLessEqual:
        holds = less_equal(left, right);
        break;
      case Comparison::kGreater:
        holds = less(right, left, ">");
        break;
      case Comparison::kGreaterEqual:
        holds = less_equal(right, left, ">=");
        break;
      case Comparison::kIn:
        holds = contains(right, left);
        break;
      case Comparison::kNotIn:
        holds = !contains(right, left);
        break;
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_concat(const Expression& node, Frame& frame) {
  const std::vector<Value> parts = evaluate_all(node.children, frame);
  bool markup = false;
  for (const Value& part : parts) markup = markup || (autoescape_ && part.is_string() && part.text().markup);
  std::string out;
  for (const Value& part : parts) {
    out += markup ? escape(part).str() : str(part);
    Budget::current()->check_string(out.size());
  }
  return Value::string(std::move(out), markup);
}

Value Interpreter::evaluate_filter(const Expression& node, Frame& frame) {
  const Value input = node.children[0] ? evaluate(*node.children[0], frame) : Value::string(captured_, autoescape_);
  return call_filter(node.name, input, evaluate(node.arguments, frame));
}

std::vector<Value> Interpreter::evaluate_all(const std::vector<ExpressionPtr>& nodes, Frame& frame) {
  std::vector<Value> values;
  values.reserve(nodes.size());
  for (const auto& node : nodes) values.push_back(evaluate(*node, frame));
  return values;
}

Arguments Interpreter::evaluate(const CallArguments& arguments, Frame& frame) {
  Arguments out;
  out.positional = evaluate_all(arguments.positional, frame);
  const auto add = [&](const std::string& name, Value value) {
    for (const auto& [known, _] : out.named) {
      if (known == name) type_error(cat("got multiple values for keyword argument '", name, "'"));
    }
    out.named.emplace_back(name, std::move(value));
  };
  for (const auto& [name, node] : arguments.named) add(name, evaluate(*node, frame));
  if (arguments.rest) {
    for (Value& value : to_vector(evaluate(*arguments.rest, frame))) out.positional.push_back(std::move(value));
  }
  if (arguments.named_rest) {
    const Value rest = evaluate(*arguments.named_rest, frame);
    if (!rest.is(Kind::kDict)) type_error(cat("argument after ** must be a mapping, not ", type_name(rest)));
    for (const auto& [key, value] : rest.dict()->entries) {
      if (!key.is_string()) type_error("keywords must be strings");
      add(key.str(), value);
    }
  }
  return out;
}

Value Interpreter::call(const Value& callable, Arguments& arguments) {
  const Depth depth(*this);
  tick();
  if (callable.is_undefined()) fail_undefined(callable);
  if (callable.is(Kind::kLoop)) {
    if (arguments.positional.size() != 1 || !arguments.named.empty()) type_error("loop() takes one iterable");
    return callable.loop().call(arguments.positional[0]);
  }
  if (!callable.is(Kind::kCallable)) type_error(cat("'", type_name(callable), "' object is not callable"));
  return callable.callable().call(*this, arguments);
}

Value Interpreter::call_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  tick();
  return find_filter(name)(*this, input, arguments);
}

bool Interpreter::call_test(std::string_view name, const Value& input, const Arguments& arguments) {
  tick();
  return find_test(name)(*this, input, arguments);
}

}  // namespace hotswap::jinja
