// Renders a tree. One object renders once, on one thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/chat/jinja/ast.h"
#include "hotswap/chat/jinja/limits.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

struct Frame : std::enable_shared_from_this<Frame> {
  Frame(std::shared_ptr<Frame> outer, size_t size)
      : parent(std::move(outer)), slots(size), counted(size * sizeof(Value) + sizeof(Frame)) {}
  std::shared_ptr<Frame> parent;
  std::vector<Value> slots;
  Counted counted;
};

struct Rendered {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generations;  // bytes [begin, end) of each {% generation %} block
};

class Interpreter {
 public:
  Interpreter(const Tree& tree, const Value& context, const Limits& limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Rendered run();

  // For filters, tests and functions.
  Value call(const Value& callable, Arguments& arguments);
  Value call_filter(std::string_view name, const Value& input, const Arguments& arguments);
  bool call_test(std::string_view name, const Value& input, const Arguments& arguments);
  Value keep(Value new_namespace);  // namespaces may hold themselves: they are emptied at the end
  bool autoescape() const { return autoescape_; }
  void tick();  // counts one step against the limits

 private:
  enum class Flow { kOn, kBreak, kContinue };

  // How deep evaluation has gone: the machine's stack is the limit that it must not reach.
  class Depth {
   public:
    explicit Depth(Interpreter& interpreter) : interpreter_(interpreter) {
      if (interpreter.depth_ >= interpreter.limits_.evaluation_depth) {
        fail(Fault::kLimit, cat("evaluation deeper than ", interpreter.limits_.evaluation_depth));
      }
      ++interpreter_.depth_;
    }
    ~Depth() { --interpreter_.depth_; }

   private:
    Interpreter& interpreter_;
  };

  void append(std::string_view text);
  std::string capture(const Body& body, Frame& frame);
  std::shared_ptr<Frame> enter(const FrameLayout& layout, Frame* parent);
  static Value& variable(Frame& frame, const Variable& at);
  Value lookup(const std::string& name) const;
  void assign(const Expression& target, const Value& value, Frame& frame);
  void export_names(const Expression& target, Frame& frame);

  // interpreter_statements.cpp
  Flow run(const Body& body, Frame& frame);
  Flow run(const Statement& node, Frame& frame);
  Flow run_loop(const Statement& node, const Value& items, int depth, Frame& frame);
  void run_set(const Statement& node, Frame& frame);
  void run_set_block(const Statement& node, Frame& frame);
  void run_call_block(const Statement& node, Frame& frame);
  void run_generation(const Statement& node, Frame& frame);
  Value filtered_items(const Statement& node, const Value& items, Frame& frame);
  Value make_macro(const Statement& node, Frame& frame, const std::string& name);
  Value call_macro(const Statement& node, const std::shared_ptr<Frame>& defined_in, const std::string& name,
                   Arguments& arguments);

  // interpreter_expressions.cpp
  Value evaluate(const Expression& node, Frame& frame);
  Value evaluate_node(const Expression& node, Frame& frame);
  Value evaluate_name(const Expression& node, Frame& frame);
  Value evaluate_item(const Expression& node, Frame& frame);
  Value evaluate_dict(const Expression& node, Frame& frame);
  Value evaluate_compare(const Expression& node, Frame& frame);
  Value evaluate_concat(const Expression& node, Frame& frame);
  Value evaluate_filter(const Expression& node, Frame& frame);
  std::vector<Value> evaluate_all(const std::vector<ExpressionPtr>& nodes, Frame& frame);
  Arguments evaluate(const CallArguments& arguments, Frame& frame);

  const Tree& tree_;
  const Value& context_;  // a dict
  const Limits& limits_;
  Dict exported_;
  std::string text_;
  std::string* out_ = &text_;
  std::vector<std::pair<size_t, size_t>> generations_;
  std::string captured_;  // what a filter without an input takes
  std::vector<Value> namespaces_;
  std::vector<std::weak_ptr<Frame>> closures_;
  bool autoescape_ = false;
  int depth_ = 0, macro_depth_ = 0;
  int64_t steps_ = 0;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace hotswap::jinja
