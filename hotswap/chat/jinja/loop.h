// What a for statement knows of its place in its items.
#pragma once

#include <functional>
#include <memory>

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

// recurse: renders the loop's body over other items at a depth, for loops that are `recursive`; empty for others.
std::shared_ptr<Loop> make_loop(Value items, int depth0, std::function<Value(const Value&, int)> recurse);

}  // namespace hotswap::jinja
