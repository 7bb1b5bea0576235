// Every JSON file that a person writes or has: a broken one is named with the byte, in words of ours.
#include "hotswap/base/error.h"
#include "hotswap/base/test_support.h"
#include "hotswap/cli/test_program.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::CliModel;
using test_support::expect_has;
using test_support::Outcome;
using test_support::tiny_model;

class BrokenJson : public CliModel {
 protected:
  void expect_named(const std::string& line, const std::string& name) const {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.status, 1) << line;
    expect_has(outcome.err,
               {name, "expected valid JSON in ", "'}' at byte 9 (line 1, column 9), not a key in double quotes"});
    EXPECT_EQ(outcome.err.find("json.exception"), std::string::npos) << outcome.err;
  }
  static constexpr const char* kBroken = R"({"a": 1,})";
};

TEST_F(BrokenJson, OfAModel) {
  const fs::path folder = file("model");
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "special_tokens_map.json", "model.safetensors.index.json"}) {
    fs::remove_all(folder);
    fs::copy(tiny_model(), folder);
    write_file(folder / name, kBroken);
    if (std::string_view(name) == "model.safetensors.index.json") fs::remove(folder / "model.safetensors");
    expect_named(cat("generate ", folder.string(), " --prompt a --max-new-tokens 1"), name);
  }
}

TEST_F(BrokenJson, OfAnAdapter) {
  const fs::path folder = file("adapter");
  fs::create_directories(folder);
  write_file(folder / "adapter_config.json", kBroken);
  write_file(folder / "adapter_model.safetensors", "");
  expect_named(cat("score ", model(), " --ids /nowhere --adapter ", folder.string()), "adapter_config.json");
}

TEST_F(BrokenJson, OfArguments) {
  write_file(file("broken.json"), kBroken);
  const std::string broken = file("broken.json").string();
  const std::string jinja = file("t.jinja").string();
  write_file(jinja, "{{ messages }}");
  write_file(file("good.json"), R"([{"role": "user", "content": "a"}])");
  const std::string messages = " --messages " + file("good.json").string();
  for (const std::string& line :
       {cat("generate ", model(), " --ids ", broken), cat("generate ", model(), " --messages ", broken),
        cat("score ", model(), " --ids ", broken), cat("tokenize ", model(), " --messages ", broken),
        cat("kernelize ", model(), " --kernel-config ", broken),
        cat("chat-template --template ", jinja, " --messages ", broken),
        cat("chat-template --template ", jinja, messages, " --tools ", broken),
        cat("chat-template --template ", jinja, messages, " --context ", broken)}) {
    expect_named(line, "broken.json");
  }
}

}  // namespace
}  // namespace hotswap
