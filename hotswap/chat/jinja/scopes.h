// Which variable each name means, decided once when a template is compiled, as jinja2 decides it: a name that a scope
// sets anywhere is that scope's own from its first line on; all other names are looked up outwards, and last in the
// context. Unknown filters and tests are errors here, but not where an `if` may keep them from running.
#pragma once

#include "hotswap/chat/jinja/ast.h"

namespace hotswap::jinja {

void resolve_names(Tree& tree);

}  // namespace hotswap::jinja
