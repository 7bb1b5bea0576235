// Grammars by xgrammar's library, loaded from where pip puts it: no Python runs.
//
//   const auto found = find_xgrammar();          // a folder that has the packages xgrammar and tvm_ffi
//   const auto engine = load_xgrammar(*found, token_bytes);
//   const auto matcher = engine->compile("root ::= \"yes\" | \"no\"")->matcher();
#pragma once

#include <filesystem>

#include "hotswap/base/result.h"
#include "hotswap/grammar/grammar.h"

namespace hotswap::grammar {

// HOTSWAP_GRAMMAR, else grammar/ beside the program's folder. The reason where it has none of a version that hotswap
// was tested with.
Result<std::filesystem::path> find_xgrammar();

// Compiles {"type": "object"} and walks it before it returns. Error (kUnsupported) where anything of the library is not
// as expected.
std::unique_ptr<GrammarEngine> load_xgrammar(const std::filesystem::path& folder, const TokenBytes& tokens);

}  // namespace hotswap::grammar
