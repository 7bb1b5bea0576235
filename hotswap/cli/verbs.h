// One function a verb: adds its subcommand with flags and help to the program. A verb runs when the line is parsed.
#pragma once

#include <CLI/CLI.hpp>

#include "hotswap/cli/flags/usage_error.h"

namespace hotswap {

// How help is written and what a mistyped line is answered; before the verbs, which take the formatter from the app.
void set_help_and_failures(CLI::App& app);

// Those of the program: all in verbs.cpp, the demo's in demo/main.cpp.
void add_verbs(CLI::App& app, const std::string& source);

void add_demo(CLI::App& app, const std::string& source);  // source: where the project's documentation is
void add_generate(CLI::App& app);
void add_chat(CLI::App& app);
void add_chat_template(CLI::App& app);
void add_score(CLI::App& app);
void add_train(CLI::App& app);
void add_merge(CLI::App& app);
void add_quantize(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_kernelize(CLI::App& app);
void add_kernel(CLI::App& app);
void add_kernel_checks(CLI::App& kernel);     // hash, check and verify, below `kernel`
void add_kernel_authoring(CLI::App& kernel);  // init, build, install, below `kernel`
void add_kernel_hub(CLI::App& kernel);        // versions and has, below `kernel`
void add_kernel_lock(CLI::App& kernel);       // lock, download and verify-signature, below `kernel`
void add_kernel_bench(CLI::App& kernel);      // bench, below `kernel`
void add_embed(CLI::App& app);
void add_download(CLI::App& app);
void add_cache(CLI::App& app);
void add_bench(CLI::App& app);
void add_env(CLI::App& app);
void add_python_env(CLI::App& app);
void add_serve(CLI::App& app);
void add_serve_hub(CLI::App& app);
void add_hub(CLI::App& app);

}  // namespace hotswap
