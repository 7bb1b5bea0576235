// `hotswap bench model`: decode, prefill or a training step of one model, as one JSON line for scripts.
#pragma once

#include <CLI/CLI.hpp>

namespace hotswap {

void add_bench_model(CLI::App& bench);

}  // namespace hotswap
