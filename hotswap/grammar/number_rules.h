// JSON's numeric values between bounds, as grammars. What is written has at most 15 digits, which a double holds
// exactly, so that a bound means the same in every reader.
#pragma once

#include <optional>

#include "hotswap/grammar/rules.h"

namespace hotswap::grammar {

struct Bound {
  double value = 0;
  bool exclusive = false;
};

struct NumberBounds {
  std::vector<Bound> min = {}, max = {};  // each of them holds
};

ExprPtr integer_expr(const NumberBounds& bounds);
ExprPtr number_expr(const NumberBounds& bounds);  // also with a fraction; with an exponent where it has no bounds

}  // namespace hotswap::grammar
