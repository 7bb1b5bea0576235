// bin/hotswap-demo: what the demo calls of hotswap's verbs, in half the time to compile. main() is cli/main.cpp.
#include "hotswap/cli/verbs.h"

namespace hotswap {

void add_verbs(CLI::App& app, const std::string& source) {
  add_demo(app, source);
  add_kernelize(app);
  add_download(app);
}

}  // namespace hotswap
