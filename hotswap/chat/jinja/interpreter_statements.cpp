#include "hotswap/chat/jinja/builtins.h"
#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/interpreter.h"
#include "hotswap/chat/jinja/iterate.h"
#include "hotswap/chat/jinja/loop.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {

Interpreter::Interpreter(const Tree& tree, const Value& context, const Limits& limits)
    : tree_(tree), context_(context), limits_(limits), deadline_(std::chrono::steady_clock::now() + limits.time) {}

Interpreter::~Interpreter() {
  // Closures and namespaces may hold each other in circles.
  for (const auto& closure : closures_) {
    if (const auto frame = closure.lock()) frame->slots.clear();
  }
  for (const Value& kept : namespaces_) kept.attributes().entries.clear();
}

Value Interpreter::keep(Value new_namespace) {
  namespaces_.push_back(new_namespace);
  return new_namespace;
}

Rendered Interpreter::run() {
  const auto frame = enter(tree_.layout, nullptr);
  run(tree_.body, *frame);
  return {std::move(text_), std::move(generations_)};
}

void Interpreter::append(std::string_view text) {
  if (out_->size() + text.size() > limits_.output_bytes) {
    fail(Fault::kLimit, cat("a text of more than ", limits_.output_bytes, " bytes"));
  }
  out_->append(text);
}

std::string Interpreter::capture(const Body& body, Frame& frame) {
  struct Redirect {  // back also when the body throws
    Redirect(std::string*& target, std::string* buffer) : place(target), before(target) { place = buffer; }
    ~Redirect() { place = before; }
    std::string*& place;
    std::string* before;
  };
  std::string buffer;
  const Redirect redirect(out_, &buffer);
  run(body, frame);
  return buffer;
}

Value Interpreter::lookup(const std::string& name) const {
  if (const Value* found = exported_.find(name)) return *found;
  if (const Value* found = context_.dict()->find(name)) return *found;
  return find_global(name);
}

std::shared_ptr<Frame> Interpreter::enter(const FrameLayout& layout, Frame* parent) {
  auto frame = std::make_shared<Frame>(parent != nullptr ? parent->shared_from_this() : nullptr, layout.slots.size());
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const SlotStart& start = layout.slots[i];
    if (start.from == SlotStart::From::kContext) frame->slots[i] = lookup(start.name);
    if (start.from == SlotStart::From::kOuter) frame->slots[i] = variable(*frame, start.outer);
  }
  return frame;
}

Value& Interpreter::variable(Frame& frame, const Variable& at) {
  Frame* holder = &frame;
  for (int i = 0; i < at.hops; ++i) holder = holder->parent.get();
  return holder->slots[static_cast<size_t>(at.slot)];
}

namespace {

void refuse_other_than_namespace(const Expression& target,
                                 const std::function<const Value&(const Variable&)>& value_of) {
  if (target.kind == ExpressionKind::kNamespaceRef && !value_of(target.variable).is(Kind::kNamespace)) {
    type_error("cannot assign attribute on non-namespace object");
  }
  for (const auto& child : target.children) refuse_other_than_namespace(*child, value_of);
}

}  // namespace

void Interpreter::assign(const Expression& target, const Value& value, Frame& frame) {
  if (target.kind == ExpressionKind::kName) {
    variable(frame, target.variable) = value;
  } else if (target.kind == ExpressionKind::kNamespaceRef) {
    variable(frame, target.variable).attributes().set(Value::string(target.attribute), value);
  } else {
    Iterator items(value);
    for (const auto& child : target.children) {
      const auto item = items.next();
      if (!item) value_error(cat("not enough values to unpack (expected ", target.children.size(), ")"));
      assign(*child, *item, frame);
    }
    if (items.next()) value_error(cat("too many values to unpack (expected ", target.children.size(), ")"));
  }
}

void Interpreter::export_names(const Expression& target, Frame& frame) {
  if (target.kind == ExpressionKind::kName) exported_.set(Value::string(target.name), variable(frame, target.variable));
  for (const auto& child : target.children) export_names(*child, frame);
}

Interpreter::Flow Interpreter::run(const Body& body, Frame& frame) {
  for (const auto& node : body) {
    try {
      const Flow flow = run(*node, frame);
      if (flow != Flow::kOn) return flow;
    } catch (const TemplateError& error) {
      if (error.line() > 0) throw;
      throw TemplateError(error.fault(), error.message(), node->line);
    }
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::run(const Statement& node, Frame& frame) {
  const Depth depth(*this);
  tick();
  switch (node.kind) {
    case StatementKind::kOutput:
      for (const auto& expression : node.expressions) {
        const bool text = expression->kind == ExpressionKind::kConstant && expression->value.is_string();
        const Value value = evaluate(*expression, frame);
        append(autoescape_ && !text ? escape(value).str() : str(value));
      }
      return Flow::kOn;
    case StatementKind::kIf:
      return run(truthy(evaluate(*node.expression, frame)) ? node.body : node.otherwise, frame);
    case StatementKind::kFor:
      return run_loop(node, evaluate(*node.expression, frame), 0, frame);
    case StatementKind::kSet:
      run_set(node, frame);
      return Flow::kOn;
    case StatementKind::kSetBlock:
      run_set_block(node, frame);
      return Flow::kOn;
    case StatementKind::kMacro: {
      Value& place = variable(frame, node.variable);
      place = make_macro(node, frame, node.name);
      if (node.exported) exported_.set(Value::string(node.name), place);
      return Flow::kOn;
    }
    case StatementKind::kCallBlock:
      run_call_block(node, frame);
      return Flow::kOn;
    case StatementKind::kGeneration:
      run_generation(node, frame);
      return Flow::kOn;
    case StatementKind::kFilterBlock: {
      const auto inner = enter(node.layout, &frame);
      captured_ = capture(node.body, *inner);
      const Value value = evaluate(*node.expression, *inner);
      if (!value.is_string()) type_error(cat("a filter block gives a text, not ", type_name(value)));
      append(value.str());
      return Flow::kOn;
    }
    case StatementKind::kWith: {
      const std::vector<Value> values = evaluate_all(node.expressions, frame);
      const auto inner = enter(node.layout, &frame);
      for (size_t i = 0; i < values.size(); ++i) assign(*node.target->children[i], values[i], *inner);
      return run(node.body, *inner);
    }
    case StatementKind::kScope: {
      const auto inner = enter(node.layout, nullptr);
      return run(node.body, *inner);
    }
    case StatementKind::kAutoescape: {
      const auto inner = enter(node.layout, &frame);
      const bool before = std::exchange(autoescape_, truthy(evaluate(*node.expression, *inner)));
      const Flow flow = run(node.body, *inner);
      autoescape_ = before;
      return flow;
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

void Interpreter::run_set(const Statement& node, Frame& frame) {
  refuse_other_than_namespace(*node.target, [&](const Variable& at) -> const Value& { return variable(frame, at); });
  assign(*node.target, evaluate(*node.expression, frame), frame);
  if (node.exported) export_names(*node.target, frame);
}

void Interpreter::run_set_block(const Statement& node, Frame& frame) {
  const auto inner = enter(node.layout, &frame);
  std::string text = capture(node.body, *inner);
  Value value;
  if (node.expression) {
    captured_ = std::move(text);
    value = evaluate(*node.expression, *inner);
  } else {
    value = Value::string(std::move(text), autoescape_);
  }
  assign(*node.target, value, frame);
  if (node.exported) export_names(*node.target, frame);
}

// The items for which the test of a for statement holds, each tested when it is asked for.
Value Interpreter::filtered_items(const Statement& node, const Value& items, Frame& frame) {
  auto iterator = std::make_shared<Iterator>(items);
  return Value::generator("loop_filter", [this, &node, iterator, outer = frame.shared_from_this()] {
    while (auto item = iterator->next()) {
      const auto inner = enter(node.test_layout, outer.get());
      assign(*node.target, *item, *inner);  // its slots are the same in both frames
      if (truthy(evaluate(*node.test, *inner))) return item;
    }
    return std::optional<Value>();
  });
}

Interpreter::Flow Interpreter::run_loop(const Statement& node, const Value& given, int depth, Frame& frame) {
  const Value items = node.test ? filtered_items(node, given, frame) : given;
  if (!iterable(items)) type_error(cat("'", type_name(items), "' object is not iterable"));
  std::function<Value(const Value&, int)> recurse;
  if (node.recursive) {
    recurse = [this, &node, outer = frame.shared_from_this()](const Value& inner_items, int inner_depth) {
      if (++macro_depth_ > limits_.macro_depth) fail(Fault::kLimit, "a recursive loop too deep");
      std::string text;
      std::string* const before = std::exchange(out_, &text);
      run_loop(node, inner_items, inner_depth, *outer);
      out_ = before;
      --macro_depth_;
      return Value::string(std::move(text));
    };
  }
  const auto loop = make_loop(items, depth, std::move(recurse));
  bool ended_a_round = false;
  while (const auto item = loop->advance()) {
    tick();
    const auto inner = enter(node.layout, &frame);
    assign(*node.target, *item, *inner);
    if (node.loop_slot >= 0) inner->slots[static_cast<size_t>(node.loop_slot)] = Value::loop(loop);
    const Flow flow = run(node.body, *inner);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kOn) ended_a_round = true;
  }
  if (ended_a_round || node.otherwise.empty()) return Flow::kOn;
  const auto inner = enter(node.otherwise_layout, &frame);
  return run(node.otherwise, *inner);
}

Value Interpreter::make_macro(const Statement& node, Frame& frame, const std::string& name) {
  closures_.push_back(frame.weak_from_this());
  const auto attribute = [&node, name](std::string_view wanted) -> std::optional<Value> {
    if (wanted == "name") return name.empty() ? Value::none() : Value::string(name);
    if (wanted == "arguments") {
      std::vector<Value> names;
      for (const auto& parameter : node.parameters.names) names.push_back(Value::string(parameter));
      return Value::tuple(std::move(names));
    }
    if (wanted == "catch_kwargs") return Value::boolean(node.parameters.uses_kwargs);
    if (wanted == "catch_varargs") return Value::boolean(node.parameters.uses_varargs);
    if (wanted == "caller") return Value::boolean(node.parameters.uses_caller);
    return std::nullopt;
  };
  return Value::callable({.call = [&node, name, defined_in = frame.shared_from_this()](Interpreter& interpreter,
                                                                                       Arguments& arguments) -> Value {
                            return interpreter.call_macro(node, defined_in, name, arguments);
                          },
                          .name = name.empty() ? "Macro anonymous" : cat("Macro ", repr_of_text(name)),
                          .attribute = attribute});
}

Value Interpreter::call_macro(const Statement& node, const std::shared_ptr<Frame>& defined_in, const std::string& name,
                              Arguments& arguments) {
  const MacroParameters& parameters = node.parameters;
  const size_t count = parameters.names.size();
  const auto take_named = [&](const std::string& wanted) -> Value {
    for (auto at = arguments.named.begin(); at != arguments.named.end(); ++at) {
      if (at->first != wanted) continue;
      Value value = std::move(at->second);
      arguments.named.erase(at);
      return value;
    }
    return {};
  };
  std::vector<Value> values;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(i < arguments.positional.size() ? arguments.positional[i] : take_named(parameters.names[i]));
  }
  const bool own_caller =
      std::find(parameters.names.begin(), parameters.names.end(), "caller") != parameters.names.end();
  if (parameters.uses_caller && !own_caller) {
    Value caller = take_named("caller");
    values.push_back(caller.missing() || caller.is(Kind::kNone) ? Value::undefined("No caller defined") : caller);
  }
  if (parameters.uses_kwargs) {
    Dict rest;
    for (auto& [key, value] : arguments.named) rest.set(Value::string(key), std::move(value));
    values.push_back(Value::dict(std::move(rest)));
  } else if (!arguments.named.empty()) {
    type_error(cat("macro ", repr_of_text(name), " takes no keyword argument '", arguments.named[0].first, "'"));
  }
  if (parameters.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
    values.push_back(Value::tuple(std::move(rest)));
  } else if (arguments.positional.size() > count) {
    type_error(cat("macro ", repr_of_text(name), " takes not more than ", count, " argument(s)"));
  }

  if (macro_depth_ >= limits_.macro_depth) fail(Fault::kLimit, cat("macros deeper than ", limits_.macro_depth));
  ++macro_depth_;
  const auto frame = enter(node.layout, defined_in.get());
  for (size_t i = 0; i < values.size(); ++i) frame->slots[i] = std::move(values[i]);
  const size_t without_default = count - parameters.defaults.size();
  for (size_t i = 0; i < count; ++i) {
    if (!frame->slots[i].missing()) continue;
    frame->slots[i] = i < without_default
                          ? Value::undefined(cat("parameter ", repr_of_text(parameters.names[i]), " was not provided"))
                          : evaluate(*parameters.defaults[i - without_default], *frame);
  }
  std::string text = capture(node.body, *frame);
  --macro_depth_;
  return Value::string(std::move(text), autoescape_);
}

void Interpreter::run_call_block(const Statement& node, Frame& frame) {
  const Value caller = make_macro(node, frame, "");
  const Value callable = evaluate(*node.expression->children[0], frame);
  Arguments arguments = evaluate(node.expression->arguments, frame);
  arguments.named.emplace_back("caller", caller);
  const Value value = call(callable, arguments);
  append(autoescape_ ? escape(value).str() : str(value));
}

void Interpreter::run_generation(const Statement& node, Frame& frame) {
  Arguments none;
  const Value text = call_macro(node, frame.shared_from_this(), "", none);
  const size_t begin = out_->size();
  append(text.str());
  if (out_ == &text_) generations_.emplace_back(begin, out_->size());
}

}  // namespace hotswap::jinja
