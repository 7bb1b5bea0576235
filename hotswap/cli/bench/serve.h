// `hotswap bench serve`: requests to an OpenAI-compatible server, and their times, as one JSON line for scripts.
#pragma once

#include <CLI/CLI.hpp>

namespace hotswap {

void add_bench_serve(CLI::App& bench);

}  // namespace hotswap
