#include "hotswap/chat/jinja/scopes.h"

#include <algorithm>
#include <map>
#include <set>

#include "hotswap/chat/jinja/builtins.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {
namespace {

using From = SlotStart::From;

// Is one of `names` read in a body before the body sets it? Bodies of inner loops and macros count.
class UndeclaredFinder {
 public:
  explicit UndeclaredFinder(std::set<std::string> names) : names_(std::move(names)) {}
  const std::set<std::string>& visit(const Body& body) {
    for (const auto& node : body) visit(*node);
    return found_;
  }

 private:
  void set(const std::string& name) { names_.erase(name); }
  void visit_target(const Expression* node) {
    if (node == nullptr) return;
    if (node->kind == ExpressionKind::kName) set(node->name);
    for (const auto& child : node->children) visit_target(child.get());
  }
  void visit(const Expression* node) {
    if (node == nullptr) return;
    if (node->kind == ExpressionKind::kName && names_.contains(node->name)) found_.insert(node->name);
    for (const auto& child : node->children) visit(child.get());
    for (const auto& argument : node->arguments.positional) visit(argument.get());
    for (const auto& [name, argument] : node->arguments.named) visit(argument.get());
    visit(node->arguments.rest.get());
    visit(node->arguments.named_rest.get());
  }
  void visit(const Statement& node) {
    if (node.kind == StatementKind::kScope) return;
    visit_target(node.target.get());
    if (node.kind == StatementKind::kMacro) set(node.name);
    visit(node.expression.get());
    for (const auto& expression : node.expressions) visit(expression.get());
    for (const auto& name : node.parameters.names) set(name);
    for (const auto& expression : node.parameters.defaults) visit(expression.get());
    visit(node.body);
    visit(node.otherwise);
    visit(node.test.get());
  }

  std::set<std::string> names_, found_;
};

// jinja2 computes an output that holds no variable when it compiles, and there takes a slice as an item.
bool is_constant(const Expression& node) {
  static const std::set<std::string> kFiltersOfContext = {"map",    "select",     "selectattr",
                                                          "reject", "rejectattr", "random"};
  switch (node.kind) {
    case ExpressionKind::kName:
    case ExpressionKind::kNamespaceRef:
    case ExpressionKind::kCall:
      return false;
    case ExpressionKind::kFilter:
      if (kFiltersOfContext.contains(node.name)) return false;
      break;
    default:
      break;
  }
  const auto constant = [](const ExpressionPtr& child) { return !child || is_constant(*child); };
  const CallArguments& arguments = node.arguments;
  return std::all_of(node.children.begin(), node.children.end(), constant) &&
         std::all_of(arguments.positional.begin(), arguments.positional.end(), constant) &&
         std::all_of(arguments.named.begin(), arguments.named.end(),
                     [&](const auto& argument) { return constant(argument.second); }) &&
         constant(arguments.rest) && constant(arguments.named_rest);
}

void mark_folded(Expression* node) {
  if (node == nullptr) return;
  node->folded = node->kind == ExpressionKind::kSlice;
  for (const auto& child : node->children) mark_folded(child.get());
  for (const auto& argument : node->arguments.positional) mark_folded(argument.get());
}

class Scope {
 public:
  explicit Scope(const Scope* parent) : parent_(parent) {}

  void parameter(const std::string& name) {
    if (!starts_.contains(name)) parameters_.push_back(name);
    stores_.insert(name);
    starts_[name] = {};
  }
  void load(const std::string& name) {
    if (!visible(name)) starts_[name] = {.from = From::kContext, .name = name};
  }
  void store(const std::string& name) {
    stores_.insert(name);
    if (!starts_.contains(name)) starts_[name] = outer_or(name, From::kUnset);
  }

  // What one of several branches stores, the scope may have from outside, too.
  template <typename Visit>
  void branches(Visit visit, size_t count) {
    const auto starts = starts_;
    const auto stores = stores_;
    std::map<std::string, SlotStart> all = starts;
    std::set<std::string> stored;
    for (size_t i = 0; i < count; ++i) {
      starts_ = starts;
      stores_ = stores;
      visit(i);
      for (const auto& [name, start] : starts_) all[name] = start;
      stored.insert(stores_.begin(), stores_.end());
    }
    for (const auto& name : stored) {
      if (!stores.contains(name)) all[name] = outer_or(name, From::kContext);
    }
    starts_ = std::move(all);
    stores_ = std::move(stored);
    stores_.insert(stores.begin(), stores.end());
  }

  // Slots by number: the parameters first, in their order.
  FrameLayout layout() {
    FrameLayout out;
    const auto add = [&](const std::string& name, const SlotStart& start) {
      slots_[name] = static_cast<int>(out.slots.size());
      out.slots.push_back(start);
    };
    for (const auto& name : parameters_) add(name, {});
    for (const auto& [name, start] : starts_) {
      if (!slots_.contains(name)) add(name, start);
    }
    return out;
  }

  Variable find(const std::string& name) const {
    int hops = 0;
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_, ++hops) {
      if (const auto slot = scope->slots_.find(name); slot != scope->slots_.end()) return {hops, slot->second};
    }
    fail(Fault::kSyntax, cat("the name '", name, "' cannot be used here"));
  }

 private:
  bool visible(const std::string& name) const {
    return starts_.contains(name) || (parent_ != nullptr && parent_->visible(name));
  }
  SlotStart outer_or(const std::string& name, From otherwise) const {
    if (parent_ == nullptr || !parent_->visible(name)) return {.from = otherwise, .name = name};
    Variable outer = parent_->find(name);
    ++outer.hops;
    return {.from = From::kOuter, .name = name, .outer = outer};
  }

  const Scope* parent_;
  std::vector<std::string> parameters_;
  std::map<std::string, SlotStart> starts_;
  std::set<std::string> stores_;
  std::map<std::string, int> slots_;
};

// First walk over a scope: which names it reads and sets, without the scopes inside of it.
class Collector {
 public:
  explicit Collector(Scope& scope) : scope_(scope) {}

  void visit(const Body& body) {
    for (const auto& node : body) visit(*node);
  }
  void visit(const Expression* node) {
    if (node == nullptr) return;
    if (node->kind == ExpressionKind::kName || node->kind == ExpressionKind::kNamespaceRef) scope_.load(node->name);
    for (const auto& child : node->children) visit(child.get());
    for (const auto& argument : node->arguments.positional) visit(argument.get());
    for (const auto& [name, argument] : node->arguments.named) visit(argument.get());
    visit(node->arguments.rest.get());
    visit(node->arguments.named_rest.get());
  }
  void target(const Expression& node, bool as_parameter) {
    if (node.kind == ExpressionKind::kNamespaceRef) {
      scope_.load(node.name);
    } else if (node.kind == ExpressionKind::kName) {
      as_parameter ? scope_.parameter(node.name) : scope_.store(node.name);
    }
    for (const auto& child : node.children) target(*child, as_parameter);
  }

 private:
  void visit(const Statement& node) {
    switch (node.kind) {
      case StatementKind::kIf:
        visit(node.expression.get());
        scope_.branches([&](size_t i) { visit(i == 0 ? node.body : node.otherwise); }, 2);
        break;
      case StatementKind::kSet:
        visit(node.expression.get());
        target(*node.target, false);
        break;
      case StatementKind::kSetBlock:
        target(*node.target, false);
        break;
      case StatementKind::kMacro:
        scope_.store(node.name);
        break;
      case StatementKind::kOutput:
      case StatementKind::kWith:
        for (const auto& expression : node.expressions) visit(expression.get());
        break;
      case StatementKind::kFor:
      case StatementKind::kCallBlock:
      case StatementKind::kFilterBlock:
        visit(node.expression.get());
        break;
      default:
        break;
    }
  }

  Scope& scope_;
};

// Second walk: writes slots into the tree and goes into the inner scopes.
class Resolver {
 public:
  void scope(Scope& scope, const Body& body, FrameLayout& layout) {
    Collector(scope).visit(body);
    layout = scope.layout();
    resolve(body, scope, false);
  }

  void resolve(const Body& body, const Scope& scope, bool soft) {
    for (const auto& node : body) {
      try {
        resolve(*node, scope, soft);
      } catch (const TemplateError& error) {
        if (error.line() > 0) throw;
        throw TemplateError(error.fault(), error.message(), node->line);
      }
    }
  }

 private:
  void resolve(Expression* node, const Scope& scope, bool soft) {
    if (node == nullptr) return;
    if (node->kind == ExpressionKind::kName || node->kind == ExpressionKind::kNamespaceRef) {
      node->variable = scope.find(node->name);
    }
    const bool filter = node->kind == ExpressionKind::kFilter;
    if ((filter || node->kind == ExpressionKind::kTest) && !soft) {
      const bool known = filter ? filter_exists(node->name) : test_exists(node->name);
      if (!known) {
        throw TemplateError(Fault::kSyntax, cat("No ", filter ? "filter" : "test", " named '", node->name, "'."),
                            node->line);
      }
    }
    if (node->kind == ExpressionKind::kBinary && node->op == Operator::kPower) {
      node->folded = is_constant(*node->children[0]) && !is_constant(*node->children[1]);
    }
    const bool inner = soft || node->kind == ExpressionKind::kConditional;
    for (const auto& child : node->children) resolve(child.get(), scope, inner);
    for (const auto& argument : node->arguments.positional) resolve(argument.get(), scope, inner);
    for (const auto& [name, argument] : node->arguments.named) resolve(argument.get(), scope, inner);
    resolve(node->arguments.rest.get(), scope, inner);
    resolve(node->arguments.named_rest.get(), scope, inner);
  }

  void resolve(Statement& node, const Scope& scope, bool soft);
  void resolve_for(Statement& node, const Scope& scope, bool soft);
  void resolve_function(Statement& node, const Scope& scope);
};

void refuse_loop_as_target(const Statement& node) {
  const auto stores_loop = [](const auto& self, const Expression* target) -> bool {
    if (target == nullptr) return false;
    if (target->kind == ExpressionKind::kName && target->name == "loop") return true;
    for (const auto& child : target->children) {
      if (self(self, child.get())) return true;
    }
    return false;
  };
  if (node.kind != StatementKind::kWith && stores_loop(stores_loop, node.target.get())) {
    fail(Fault::kSyntax, "Can't assign to special loop variable in for-loop target");
  }
  for (const auto& child : node.body) refuse_loop_as_target(*child);
  for (const auto& child : node.otherwise) refuse_loop_as_target(*child);
}

void Resolver::resolve_for(Statement& node, const Scope& scope, bool soft) {
  refuse_loop_as_target(node);
  resolve(node.expression.get(), scope, soft);
  Scope body(&scope);
  const bool uses_loop = node.recursive || UndeclaredFinder({"loop"}).visit(node.body).contains("loop");
  Collector(body).target(*node.target, true);  // the first slots, here as in the test's frame
  if (uses_loop) body.parameter("loop");
  this->scope(body, node.body, node.layout);
  if (uses_loop) node.loop_slot = body.find("loop").slot;
  resolve(node.target.get(), body, false);
  if (node.test) {
    Scope test(&scope);
    Collector collector(test);
    collector.target(*node.target, true);
    collector.visit(node.test.get());
    node.test_layout = test.layout();
    resolve(node.test.get(), test, false);
  }
  Scope otherwise(&scope);
  this->scope(otherwise, node.otherwise, node.otherwise_layout);
}

// Macros and call blocks.
void Resolver::resolve_function(Statement& node, const Scope& scope) {
  Scope body(&scope);
  MacroParameters& parameters = node.parameters;
  const auto named = [&](const char* name) {
    return std::find(parameters.names.begin(), parameters.names.end(), name) != parameters.names.end();
  };
  for (const auto& name : parameters.names) body.parameter(name);
  const auto read = UndeclaredFinder({"caller", "kwargs", "varargs"}).visit(node.body);
  parameters.uses_caller = read.contains("caller");
  parameters.uses_kwargs = read.contains("kwargs") && !named("kwargs");
  parameters.uses_varargs = read.contains("varargs") && !named("varargs");
  if (parameters.uses_caller && named("caller")) {
    const auto without_default = parameters.names.end() - static_cast<long>(parameters.defaults.size());
    if (std::find(parameters.names.begin(), without_default, "caller") != without_default) {
      fail(Fault::kSyntax, "the special \"caller\" argument must be omitted or be given a default");
    }
  }
  if (parameters.uses_caller && !named("caller")) body.parameter("caller");
  if (parameters.uses_kwargs) body.parameter("kwargs");
  if (parameters.uses_varargs) body.parameter("varargs");
  Collector collector(body);
  for (const auto& expression : parameters.defaults) collector.visit(expression.get());
  this->scope(body, node.body, node.layout);
  for (const auto& expression : parameters.defaults) resolve(expression.get(), body, false);
}

void Resolver::resolve(Statement& node, const Scope& scope, bool soft) {
  switch (node.kind) {
    case StatementKind::kOutput:
      for (const auto& expression : node.expressions) {
        resolve(expression.get(), scope, soft);
        if (is_constant(*expression)) mark_folded(expression.get());
      }
      break;
    case StatementKind::kIf:
      resolve(node.expression.get(), scope, true);
      resolve(node.body, scope, true);
      resolve(node.otherwise, scope, true);
      break;
    case StatementKind::kFor:
      resolve_for(node, scope, soft);
      break;
    case StatementKind::kSet:
      resolve(node.expression.get(), scope, soft);
      resolve(node.target.get(), scope, soft);
      break;
    case StatementKind::kSetBlock: {
      resolve(node.target.get(), scope, soft);
      Scope body(&scope);
      Collector(body).visit(node.expression.get());
      this->scope(body, node.body, node.layout);
      resolve(node.expression.get(), body, false);
      break;
    }
    case StatementKind::kMacro:
      node.variable = scope.find(node.name);
      resolve_function(node, scope);
      break;
    case StatementKind::kCallBlock:
      resolve(node.expression.get(), scope, soft);
      [[fallthrough]];
    case StatementKind::kGeneration:
      resolve_function(node, scope);
      break;
    case StatementKind::kFilterBlock: {
      Scope body(&scope);
      Collector(body).visit(node.expression.get());
      this->scope(body, node.body, node.layout);
      resolve(node.expression.get(), body, false);
      break;
    }
    case StatementKind::kWith: {
      for (const auto& expression : node.expressions) resolve(expression.get(), scope, soft);
      Scope body(&scope);
      Collector(body).target(*node.target, true);
      this->scope(body, node.body, node.layout);
      resolve(node.target.get(), body, false);
      break;
    }
    case StatementKind::kAutoescape: {
      Scope body(&scope);
      Collector(body).visit(node.expression.get());
      this->scope(body, node.body, node.layout);
      resolve(node.expression.get(), body, false);
      break;
    }
    case StatementKind::kScope: {
      Scope body(nullptr);  // a block sees the context alone
      this->scope(body, node.body, node.layout);
      break;
    }
    case StatementKind::kBreak:
    case StatementKind::kContinue:
      break;
  }
}

// Sets at the top of the template are seen by blocks.
void mark_exports(const Body& body) {
  for (const auto& node : body) {
    node->exported = node->kind == StatementKind::kSet || node->kind == StatementKind::kSetBlock ||
                     node->kind == StatementKind::kMacro;
    if (node->kind == StatementKind::kIf) {
      mark_exports(node->body);
      mark_exports(node->otherwise);
    }
  }
}

}  // namespace

void resolve_names(Tree& tree) {
  Scope root(nullptr);
  Resolver().scope(root, tree.body, tree.layout);
  mark_exports(tree.body);
}

}  // namespace hotswap::jinja
