#include "hotswap/cli/verbs.h"

#include <memory>

#include "hotswap/cli/flags/help_format.h"
#include "hotswap/cli/flags/unknown_word.h"

namespace hotswap {

void add_verbs(CLI::App& app, const std::string& source) {
  app.formatter(std::make_shared<HelpFormat>());  // before the verbs, which take it from here
  app.failure_message([](const CLI::App* line, const CLI::Error& error) {
    if (const auto unknown = unknown_word(*line)) return *unknown + "\n";
    return CLI::FailureMessage::simple(line, error);
  });
  add_demo(app, source);
  add_chat(app);
  add_generate(app);
  add_score(app);
  add_train(app);
  add_merge(app);
  add_quantize(app);
  add_tokenize(app);
  add_chat_template(app);
  add_kernelize(app);
  add_kernel(app);
  add_download(app);
  add_cache(app);
  add_bench(app);
  add_env(app);
  add_python_env(app);
  add_serve(app);
  add_serve_hub(app);
  add_hub(app);
}

}  // namespace hotswap
