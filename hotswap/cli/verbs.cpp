#include "hotswap/cli/verbs.h"

namespace hotswap {

void add_verbs(CLI::App& app, const std::string& source) {
  add_demo(app, source);
  add_chat(app);
  add_generate(app);
  add_score(app);
  add_embed(app);
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
