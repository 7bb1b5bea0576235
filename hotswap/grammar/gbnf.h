// A grammar that a request brought, in llama.cpp's GBNF: read, checked, and written again, so that what the library
// gets is always well formed.
//
//   root ::= greeting " " name
//   greeting ::= "Hello" | "Bye"     # alternatives, "literals", [a-z0-9] classes, ( ) groups, * + ? {2,5}
//   name ::= [A-Z] [a-z]{1,20}
#pragma once

#include <string>

namespace hotswap::grammar {

// Error (kInvalidArgument) where the text is no such grammar, is beyond a limit, has no `root`, or matches no text.
std::string checked_gbnf(const std::string& text);

// The texts of both grammars, each as checked_gbnf() or Rules::print() wrote it.
std::string either_gbnf(const std::string& one, const std::string& other);

}  // namespace hotswap::grammar
