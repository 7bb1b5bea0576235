#include "hotswap/cli/run_line.h"

#include <memory>

#include "hotswap/cli/flags/help_format.h"
#include "hotswap/cli/flags/unknown_word.h"
#include "hotswap/cli/print/failure.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {

void set_help_and_failures(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormat>());
  app.failure_message([](const CLI::App* line, const CLI::Error& error) {
    if (const auto unknown = unknown_word(*line)) return *unknown + "\n";
    return CLI::FailureMessage::simple(line, error);
  });
}

int run_line(int argc, char** argv, const char* version, const char* source) {
  CLI::App app(
      "Hot-swap the layers of transformers for optimized kernels.\n"
      "Results go to stdout, messages to stderr. Exit 0: done; 1: an error; 2: wrong usage;\n70: a fault of hotswap; "
      "75: a Hub, a device or memory that is unavailable now.",
      "hotswap");
  app.require_subcommand(1);
  app.set_version_flag("--version", version);
  set_help_and_failures(app);
  add_verbs(app, source);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return 0;
}

}  // namespace hotswap
