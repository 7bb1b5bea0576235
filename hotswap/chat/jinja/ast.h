// The syntax tree of a template. Names have their variable after scopes.h has resolved them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/chat/jinja/arithmetic.h"
#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

// A slot of a frame: `hops` frames outwards from the one that runs.
struct Variable {
  int hops = 0;
  int slot = 0;
};

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr rest, named_rest;  // *rest, **named_rest
};

enum class Comparison { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

enum class ExpressionKind {
  kConstant,      // value
  kName,          // name, variable
  kNamespaceRef,  // name.attribute as the target of a set; name, attribute, variable
  kTuple,         // children
  kList,
  kDict,         // children: key, value, key, value, ...
  kAttribute,    // children[0].name
  kItem,         // children[0][children[1]]
  kSlice,        // children[0][a:b:c], children 1 to 3 may be null
  kCall,         // children[0](arguments)
  kFilter,       // children[0] | name(arguments); a null child is the text of the block around it
  kTest,         // children[0] is name(arguments)
  kConditional,  // children: test, then, else (may be null)
  kAnd,
  kOr,
  kNot,
  kCompare,  // children[0] comparisons[0] children[1] comparisons[1] ...
  kBinary,   // children[0] op children[1]
  kConcat,   // children[0] ~ children[1] ~ ...
  kNegate,
  kPlus,
};

struct Expression {
  ExpressionKind kind;
  int line = 0;
  int depth = 1;  // of the tree below
  std::string name, attribute;
  Value value{};
  Variable variable{};
  Operator op{};
  // What jinja2 computes when it compiles: kSlice in a constant output (what cannot be sliced is undefined there, not
  // an error), and kBinary of a power with a constant base (whose sign it then applies last).
  bool folded = false;
  std::vector<Comparison> comparisons;
  std::vector<ExpressionPtr> children;
  CallArguments arguments;
};

// What a new frame begins with in one slot.
struct SlotStart {
  enum class From { kUnset, kContext, kOuter } from = From::kUnset;
  std::string name;  // kContext: looked up in the context when the frame begins
  Variable outer{};  // kOuter: hops from the new frame
};

struct FrameLayout {
  std::vector<SlotStart> slots;  // the first ones are parameters, set by who makes the frame
};

enum class StatementKind {
  kOutput,     // expressions: constants of the template's text among them
  kIf,         // expression, body, otherwise; an elif is an if in `otherwise`
  kFor,        // target, expression (items), test, body, otherwise, recursive
  kSet,        // target, expression
  kSetBlock,   // target, expression (filter, may be null), body
  kMacro,      // name, variable, parameters, body
  kCallBlock,  // expression (the call), parameters, body
  kFilterBlock,
  kWith,        // targets as parameters of `layout`, children of `expressions`, body
  kScope,       // body in a frame of its own (block)
  kAutoescape,  // expression, body
  kGeneration,  // the assistant's text; a call block without parameters
  kBreak,
  kContinue,
};

struct MacroParameters {
  std::vector<std::string> names;
  std::vector<ExpressionPtr> defaults;  // of the last names
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
};

struct Statement {
  StatementKind kind;
  int line = 0;
  std::string name;
  Variable variable{};
  std::vector<ExpressionPtr> expressions;
  ExpressionPtr expression, target, test;
  Body body, otherwise;
  MacroParameters parameters;
  FrameLayout layout, test_layout, otherwise_layout;
  bool recursive = false;
  int loop_slot = -1;     // kFor: where `loop` stands, where the body uses it
  bool exported = false;  // kSet, kMacro at the top: blocks see it through the context
};

struct Tree {
  Body body;
  FrameLayout layout;
};

}  // namespace hotswap::jinja
