// The whole command line, for main(): a header without CLI11, which takes a file that includes it ten seconds to
// compile.
#pragma once

namespace hotswap {

// Parses and runs one line. source: where the project's documentation is.
// Returns the exit status of a line that was parsed or is wrong usage; what fails in a verb is thrown.
int run_line(int argc, char** argv, const char* version, const char* source);

}  // namespace hotswap
