// Filters over iterables.
#include <algorithm>
#include <random>

#include "hotswap/chat/jinja/arithmetic.h"
#include "hotswap/chat/jinja/attributes.h"
#include "hotswap/chat/jinja/builtins.h"
#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/interpreter.h"
#include "hotswap/chat/jinja/iterate.h"
#include "hotswap/chat/jinja/parameters.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

Value without_case(const Value& value) {
  return value.is_string() ? Value::string(lower(std::string_view(value.str()))) : value;
}

// "a.b.0" as a path of keys; none is the item itself.
class Path {
 public:
  explicit Path(const std::optional<Value>& attribute, std::optional<Value> otherwise = std::nullopt)
      : otherwise_(std::move(otherwise)) {
    if (!attribute) return;
    if (!attribute->is_string()) {
      keys_.push_back(*attribute);
      return;
    }
    const std::string& text = attribute->str();
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find('.', at), text.size());
      const std::string part = text.substr(at, end - at);
      const bool index = !part.empty() && part.size() < 19 && part.find_first_not_of("0123456789") == std::string::npos;
      keys_.push_back(index ? Value::integer(std::stoll(part)) : Value::string(part));
      at = end + 1;
    }
  }

  Value of(Interpreter& interpreter, Value item) const {
    for (const Value& key : keys_) {
      item = get_item(interpreter, item, key);
      if (otherwise_ && item.is_undefined()) item = *otherwise_;
    }
    return item;
  }

 private:
  std::vector<Value> keys_;
  std::optional<Value> otherwise_;
};

// The values that sort compares: one for each path of "a,b.c".
class SortKey {
 public:
  SortKey(const std::optional<Value>& attribute, bool case_sensitive) : case_sensitive_(case_sensitive) {
    if (!attribute || !attribute->is_string()) {
      paths_.emplace_back(attribute);
      return;
    }
    const std::string& text = attribute->str();
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      paths_.emplace_back(Value::string(text.substr(at, end - at)));
      at = end + 1;
    }
  }
  Value of(Interpreter& interpreter, const Value& item) const {
    std::vector<Value> keys;
    for (const Path& path : paths_) {
      const Value key = path.of(interpreter, item);
      keys.push_back(case_sensitive_ ? key : without_case(key));
    }
    return Value::list(std::move(keys));
  }

 private:
  std::vector<Path> paths_;
  bool case_sensitive_;
};

std::vector<Value> sorted(Interpreter& interpreter, const std::vector<Value>& items,
                          const std::function<Value(const Value&)>& key, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) keyed.emplace_back(key(item), item);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    interpreter.tick();
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  std::vector<Value> out;
  for (auto& [_, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value sort(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const SortKey key(p.optional(2), p.truth(1, false));
  return Value::list(sorted(
      interpreter, to_vector(input), [&](const Value& item) { return key.of(interpreter, item); }, p.truth(0, false)));
}

Value dictsort(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = p.text(1, "key");
  if (by != "key" && by != "value") value_error("You can only sort by either \"key\" or \"value\"");
  if (input.is_undefined()) fail_undefined(input);
  if (!input.is(Kind::kDict)) type_error(cat("'", type_name(input), "' object has no attribute 'items'"));
  const auto key = [&](const Value& item) {
    const Value& value = item.items()[by == "key" ? 0 : 1];
    return p.truth(0, false) ? value : without_case(value);
  };
  return Value::list(
      sorted(interpreter, to_vector(Value::view({View::Which::kItems, input.dict()})), key, p.truth(2, false)));
}

Value groupby(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const Path path(p.optional(0), p.optional(1));
  const auto key = [&](const Value& item) {
    const Value value = path.of(interpreter, item);
    return p.truth(2, false) ? value : without_case(value);
  };
  const std::vector<Value> items = sorted(interpreter, to_vector(input), key, false);
  std::vector<Value> groups;
  for (size_t at = 0; at < items.size();) {
    const Value first = key(items[at]);
    std::vector<Value> members{items[at++]};
    while (at < items.size() && equal(key(items[at]), first)) members.push_back(items[at++]);
    const Value grouper = path.of(interpreter, members[0]);  // with its own case
    groups.push_back(Value::tuple({grouper, Value::list(std::move(members))}, true));
  }
  return Value::list(std::move(groups));
}

// What generators share: an iterator that begins at the first request, since errors come only then.
std::function<std::optional<Value>()> lazily(const Value& input, std::function<std::optional<Value>(Iterator&)> next) {
  return [input, next = std::move(next), iterator = std::shared_ptr<Iterator>()]() mutable {
    if (!iterator) iterator = std::make_shared<Iterator>(input);
    return next(*iterator);
  };
}

Value unique(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p("unique", arguments, {"case_sensitive", "attribute"});
  const bool sensitive = p.truth(0, false);
  return Value::generator("sync_do_unique", lazily(input, [&interpreter, sensitive, path = Path(p.optional(1)),
                                                           seen = std::make_shared<Dict>()](Iterator& items) {
                            while (auto item = items.next()) {
                              const Value value = path.of(interpreter, *item);
                              const Value key = sensitive ? value : without_case(value);
                              if (seen->find(key) != nullptr) continue;
                              seen->set(key, Value::none());
                              return item;
                            }
                            return std::optional<Value>();
                          }));
}

template <bool greatest>
Value extreme(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p(greatest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const Path path(p.optional(1));
  std::optional<std::pair<Value, Value>> best;
  Iterator items(input);
  while (const auto item = items.next()) {
    const Value value = path.of(interpreter, *item);
    const Value key = p.truth(0, false) ? value : without_case(value);
    if (!best || (greatest ? less(best->first, key, ">") : less(key, best->first))) best = {key, *item};
  }
  return best ? best->second : Value::undefined("No aggregated item, sequence was empty.");
}

Value default_value(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("default", arguments, {"default_value", "boolean"});
  const bool absent = input.is_undefined() || (p.truth(1, false) && !truthy(input));
  return absent ? p.get(0, Value::string("")) : input;
}

Value attr(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("attr", arguments, {"name"}, 1);
  if (input.is_undefined()) fail_undefined(input);
  const auto found = find_attribute(input, p.text(0));
  return found ? *found : undefined_attribute(input, p.at(0));
}

Value join_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p("join", arguments, {"d", "attribute"});
  const Path path(p.optional(1));
  const std::string between = p.given(0) ? str(p.at(0)) : "";
  std::string out;
  Iterator items(input);
  for (bool first = true; auto item = items.next(); first = false) {
    interpreter.tick();
    if (!first) out += between;
    out += str(path.of(interpreter, *item));
    Budget::current()->check_string(out.size());
  }
  return Value::string(std::move(out));
}

Value first(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("first", arguments, {});
  Iterator items(input);
  const auto item = items.next();
  return item ? *item : Value::undefined("No first item, sequence was empty.");
}

bool reversible(const Value& value) { return iterable(value) && !value.is(Kind::kGenerator) && !value.is(Kind::kLoop); }

Value last(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("last", arguments, {});
  if (!reversible(input)) type_error(cat("'", type_name(input), "' object is not reversible"));
  const std::vector<Value> items = to_vector(input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value reverse(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("reverse", arguments, {});
  if (input.is_string()) return slice(input, Value::none(), Value::none(), Value::integer(-1));
  if (!iterable(input)) type_error("argument must be iterable");
  std::vector<Value> items = to_vector(input);
  std::reverse(items.begin(), items.end());
  if (!reversible(input)) return Value::list(std::move(items));
  auto left = std::make_shared<Iterator>(Value::list(std::move(items)));
  return Value::generator("list_reverseiterator", [left] { return left->next(); });
}

Value length(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("length", arguments, {});
  return Value::integer(length_of(input));
}

Value list(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("list", arguments, {});
  return Value::list(to_vector(input));
}

Value items(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("items", arguments, {});
  auto inner = std::make_shared<std::optional<Iterator>>();
  return Value::generator("do_items", [input, inner]() -> std::optional<Value> {
    if (input.is_undefined()) return std::nullopt;
    if (!input.is(Kind::kDict)) type_error("Can only get item pairs from a mapping.");
    if (!*inner) inner->emplace(Value::view({View::Which::kItems, input.dict()}));
    return (*inner)->next();
  });
}

Value map(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  return Value::generator("sync_do_map",
                          [&interpreter, input, arguments, iterator = std::shared_ptr<Iterator>(),
                           change = std::function<Value(const Value&)>()]() mutable -> std::optional<Value> {
                            if (!iterator) {
                              if (!truthy(input)) return std::nullopt;
                              const bool attribute =
                                  arguments.positional.empty() &&
                                  std::any_of(arguments.named.begin(), arguments.named.end(),
                                              [](const auto& argument) { return argument.first == "attribute"; });
                              if (attribute) {
                                const Parameters p("map", arguments, {"attribute", "default"});
                                change = [&interpreter, path = Path(p.optional(0), p.optional(1))](const Value& item) {
                                  return path.of(interpreter, item);
                                };
                              } else {
                                if (arguments.positional.empty()) type_error("map requires a filter argument");
                                const Value name = arguments.positional[0];
                                if (!name.is_string()) type_error("the name of a filter is a text");
                                Arguments rest = arguments;
                                rest.positional.erase(rest.positional.begin());
                                change = [&interpreter, name, rest = std::move(rest)](const Value& item) {
                                  return interpreter.call_filter(name.str(), item, rest);
                                };
                              }
                              iterator = std::make_shared<Iterator>(input);
                            }
                            const auto item = iterator->next();
                            return item ? std::optional(change(*item)) : std::nullopt;
                          });
}

template <bool keep, bool by_attribute>
Value select(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  return Value::generator("select_or_reject",
                          [&interpreter, input, arguments, iterator = std::shared_ptr<Iterator>(),
                           holds = std::function<bool(const Value&)>()]() mutable -> std::optional<Value> {
                            if (!iterator) {
                              if (!truthy(input)) return std::nullopt;
                              Arguments rest = arguments;
                              const auto take = [&]() -> std::optional<Value> {
                                if (rest.positional.empty()) return std::nullopt;
                                Value value = rest.positional[0];
                                rest.positional.erase(rest.positional.begin());
                                return value;
                              };
                              const std::optional<Value> attribute = by_attribute ? take() : std::nullopt;
                              if (by_attribute && !attribute) type_error("Missing parameter for attribute name");
                              const std::optional<Value> test = take();
                              if (test && !test->is_string()) type_error("the name of a test is a text");
                              holds = [&interpreter, path = Path(attribute), test, rest](const Value& item) {
                                const Value value = path.of(interpreter, item);
                                return test ? interpreter.call_test(test->str(), value, rest) : truthy(value);
                              };
                              iterator = std::make_shared<Iterator>(input);
                            }
                            while (auto item = iterator->next()) {
                              if (holds(*item) == keep) return item;
                            }
                            return std::nullopt;
                          });
}

Value batch(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("batch", arguments, {"linecount", "fill_with"}, 1);
  return Value::generator(
      "do_batch",
      lazily(input,
             [p, fill = p.optional(1), held = std::optional<Value>()](Iterator& items) mutable -> std::optional<Value> {
               const int64_t count = p.integer(0, 0);
               std::vector<Value> row;
               if (held) row.push_back(*std::exchange(held, std::nullopt));
               while (auto item = items.next()) {
                 if (static_cast<int64_t>(row.size()) == count) {
                   held = std::move(item);
                   return Value::list(std::move(row));
                 }
                 row.push_back(std::move(*item));
               }
               if (row.empty()) return std::nullopt;
               while (fill && static_cast<int64_t>(row.size()) < count) row.push_back(*fill);
               return Value::list(std::move(row));
             }));
}

Value slices(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("slice", arguments, {"slices", "fill_with"}, 1);
  return Value::generator("sync_do_slice",
                          [input, p, fill = p.optional(1), all = std::optional<std::vector<Value>>(),
                           number = int64_t{0}, offset = int64_t{0}]() mutable -> std::optional<Value> {
                            if (!all) all = to_vector(input);
                            const int64_t count = p.integer(0, 0);
                            if (count == 0) value_error("integer division or modulo by zero");
                            if (number >= count) return std::nullopt;
                            const auto size = static_cast<int64_t>(all->size());
                            const int64_t each = size / count, with_extra = size % count;
                            const int64_t begin = offset + number * each;
                            if (number < with_extra) ++offset;
                            const int64_t end = offset + (number + 1) * each;
                            std::vector<Value> part(all->begin() + begin, all->begin() + end);
                            if (fill && number >= with_extra) part.push_back(*fill);
                            ++number;
                            return Value::list(std::move(part));
                          });
}

Value sum(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p("sum", arguments, {"attribute", "start"});
  const Path path(p.optional(0));
  Value total = p.get(1, Value::integer(0));
  if (total.is_string()) type_error("sum() can't sum strings [use ''.join(seq) instead]");
  Iterator items(input);
  while (const auto item = items.next()) total = apply(Operator::kAdd, total, path.of(interpreter, *item));
  return total;
}

Value random(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("random", arguments, {});
  const int64_t size = length_of(input);
  if (size == 0) return Value::undefined("No random item, sequence was empty.");
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return to_vector(input)[std::uniform_int_distribution<size_t>(0, static_cast<size_t>(size) - 1)(generator)];
}

}  // namespace

const Filters& list_filters() {
  static const Filters all = {{"attr", attr},
                              {"batch", batch},
                              {"count", length},
                              {"d", default_value},
                              {"default", default_value},
                              {"dictsort", dictsort},
                              {"first", first},
                              {"groupby", groupby},
                              {"items", items},
                              {"join", join_filter},
                              {"last", last},
                              {"length", length},
                              {"list", list},
                              {"map", map},
                              {"max", extreme<true>},
                              {"min", extreme<false>},
                              {"random", random},
                              {"reject", select<false, false>},
                              {"rejectattr", select<false, true>},
                              {"reverse", reverse},
                              {"select", select<true, false>},
                              {"selectattr", select<true, true>},
                              {"slice", slices},
                              {"sort", sort},
                              {"sum", sum},
                              {"unique", unique}};
  return all;
}

}  // namespace hotswap::jinja
