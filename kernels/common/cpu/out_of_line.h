// For large functions of which a file has many variants.
#pragma once

// A function of its own, where a call costs nothing beside its work: some passes of the compiler take time that grows
// with the square of a function's length, so all variants in one function take far longer to compile than each in its
// own. Arguments are values: the inner loop would have to expect that a store changes what it reads through a
// reference.
#define HOTSWAP_OUT_OF_LINE static __attribute__((noinline))
