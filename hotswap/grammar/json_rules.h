// JSON's own rules: strings, members, lists, any value.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "hotswap/grammar/rules.h"

namespace hotswap::grammar {

struct Member {
  std::string name;
  ExprPtr value;
  bool required = false;
};

struct ObjectShape {
  std::vector<Member> members = {};  // in the order in which they are written
  ExprPtr others = nullptr;          // the value of a member of any other name; null: there are none
  int64_t min = 0, max = kNoMax;     // how many members
};

struct ArrayShape {
  std::vector<ExprPtr> first = {};
  ExprPtr others = nullptr;  // after those; null: there are none
  int64_t min = 0, max = kNoMax;
};

class JsonRules {
 public:
  ExprPtr any() { return any_value(kAnyDepth); }
  ExprPtr any_object() { return object({.others = any_value(kAnyDepth - 1)}); }
  ExprPtr string(int64_t min = 0, int64_t max = kNoMax);  // min to max code points
  ExprPtr object(const ObjectShape& shape);
  ExprPtr array(const ArrayShape& shape);
  // One character of the set within a string, escaped where JSON needs it.
  static ExprPtr character(const CodePoints& set);
  ExprPtr any_character();
  Rules& rules() { return rules_; }

 private:
  static constexpr int kAnyDepth = 5;  // levels of lists and objects within a value that a schema leaves open
  ExprPtr any_value(int depth);
  ExprPtr space();
  ExprPtr member(const Member& one);
  ExprPtr other_member(const ObjectShape& shape);
  ExprPtr other_name(std::vector<std::u32string> names, size_t at);
  ExprPtr counted_members(const ObjectShape& shape);
  ExprPtr open_members(const ObjectShape& shape);
  ExprPtr separator();
  ExprPtr named(const char* name, const std::function<ExprPtr()>& make);
  Rules rules_;
  std::map<std::string, ExprPtr> named_;
};

std::string json_text(std::string_view utf8);  // with its quotes

}  // namespace hotswap::grammar
