#include "hotswap/chat/jinja/loop.h"

#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/iterate.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {
namespace {

class ForLoop : public Loop, public std::enable_shared_from_this<ForLoop> {
 public:
  ForLoop(Value items, int depth0, std::function<Value(const Value&, int)> recurse)
      : items_(std::move(items)), iterator_(items_), depth0_(depth0), recurse_(std::move(recurse)) {}

  std::optional<Value> advance() override;
  int64_t length() override;
  int64_t index0() const override { return index0_; }
  std::optional<Value> attribute(std::string_view name) override;
  Value call(const Value& items) override;

 private:
  const std::optional<Value>& peek();
  Value cycle(const std::vector<Value>& values) const;
  bool changed(std::vector<Value> values);

  Value items_;
  Iterator iterator_;
  int depth0_;
  std::function<Value(const Value&, int)> recurse_;
  int64_t index0_ = -1;
  std::optional<int64_t> length_;
  std::optional<Value> current_, before_, after_;
  std::optional<Value> last_changed_;
};

const std::optional<Value>& ForLoop::peek() {
  if (!after_) after_ = iterator_.next();
  return after_;
}

std::optional<Value> ForLoop::advance() {
  std::optional<Value> item = peek();
  after_.reset();
  if (!item) return std::nullopt;
  ++index0_;
  before_ = std::exchange(current_, item);
  return item;
}

int64_t ForLoop::length() {
  if (!length_) length_ = length_if_sized(items_);
  if (!length_) {
    std::vector<Value> rest;
    while (auto item = iterator_.next()) rest.push_back(std::move(*item));
    length_ = static_cast<int64_t>(rest.size()) + index0_ + 1 + (after_ ? 1 : 0);
    iterator_ = Iterator(Value::list(std::move(rest)));
  }
  return *length_;
}

Value ForLoop::cycle(const std::vector<Value>& values) const {
  if (values.empty()) type_error("no items for cycling given");
  return values[static_cast<size_t>(index0_) % values.size()];
}

bool ForLoop::changed(std::vector<Value> values) {
  const Value now = Value::tuple(std::move(values));
  if (last_changed_ && equal(*last_changed_, now)) return false;
  last_changed_ = now;
  return true;
}

std::optional<Value> ForLoop::attribute(std::string_view name) {
  if (name == "index") return Value::integer(index0_ + 1);
  if (name == "index0") return Value::integer(index0_);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!peek());
  if (name == "length") return Value::integer(length());
  if (name == "revindex") return Value::integer(length() - index0_);
  if (name == "revindex0") return Value::integer(length() - index0_ - 1);
  if (name == "depth") return Value::integer(depth0_ + 1);
  if (name == "depth0") return Value::integer(depth0_);
  if (name == "previtem") {
    return index0_ == 0 || !before_ ? Value::undefined("there is no previous item") : *before_;
  }
  if (name == "nextitem") return peek() ? *peek() : Value::undefined("there is no next item");
  const auto method = [&](const char* what, auto call) {
    return Value::callable({.call = [self = shared_from_this(), call](Interpreter&, Arguments& arguments) -> Value {
                              if (!arguments.named.empty())
                                type_error("unexpected keyword argument of a loop's method");
                              return call(*self, arguments);
                            },
                            .name = what});
  };
  if (name == "cycle") {
    return method("bound method LoopContext.cycle",
                  [](ForLoop& loop, Arguments& a) { return loop.cycle(a.positional); });
  }
  if (name == "changed") {
    return method("bound method LoopContext.changed",
                  [](ForLoop& loop, Arguments& a) { return Value::boolean(loop.changed(std::move(a.positional))); });
  }
  return std::nullopt;
}

Value ForLoop::call(const Value& items) {
  if (!recurse_) type_error("The loop must have the 'recursive' marker to be called recursively.");
  return recurse_(items, depth0_ + 1);
}

}  // namespace

std::shared_ptr<Loop> make_loop(Value items, int depth0, std::function<Value(const Value&, int)> recurse) {
  return std::make_shared<ForLoop>(std::move(items), depth0, std::move(recurse));
}

}  // namespace hotswap::jinja
