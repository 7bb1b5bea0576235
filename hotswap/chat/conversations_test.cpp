// Random conversations by chat templates, here and in transformers: the same text and the same spans of the assistant,
// or an error in both. HOTSWAP_TEST_CONVERSATIONS=10000 is how many, HOTSWAP_TEST_SEED=N makes others, and
// HOTSWAP_TEST_TEMPLATES=FOLDER adds its *.jinja files.
#include <gtest/gtest.h>

#include <cstdlib>

#include "hotswap/base/file.h"
#include "hotswap/base/test_data.h"
#include "hotswap/chat/chat_template.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

// Of the recorded data, where it is, and of the folder.
std::string template_arguments() {
  std::string out;
  for (const char* name :
       {"models/smollm2-135m-instruct", "tokenizers/qwen3", "tokenizers/mistral-v0.3", "tokenizers/gpt2"}) {
    const auto folder = test_support::recorded_data() / name;
    if (std::filesystem::exists(folder / "tokenizer_config.json")) out += " " + folder.string();
  }
  const char* more = std::getenv("HOTSWAP_TEST_TEMPLATES");
  if (more == nullptr) return out;
  for (const auto& entry : std::filesystem::directory_iterator(more)) {
    if (entry.path().extension() == ".jinja") out += " " + entry.path().string();
  }
  return out;
}

// Characters [begin, end), as Python counts them.
OutJson in_characters(const RenderedChat& chat) {
  const auto characters = [&](size_t bytes) {
    return std::count_if(chat.text.begin(), chat.text.begin() + static_cast<ptrdiff_t>(bytes),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  };
  OutJson out = OutJson::array();
  for (const auto& [begin, end] : chat.assistant) out.push_back({characters(begin), characters(end)});
  return out;
}

TEST(ChatPython, RandomConversationsAreRenderedAsByTransformers) {
  if (test_support::no_transformers()) GTEST_SKIP() << *test_support::no_transformers();
  const char* given = std::getenv("HOTSWAP_TEST_CONVERSATIONS");
  const int count = given == nullptr ? 2000 : std::atoi(given);
  const test_support::TempFolder folder;
  const auto out = folder.path() / "cases.json";
  const auto run = test_support::run_script(
      test_support::source_folder() / "hotswap/chat/random_conversations.py",
      cat(out.string(), " ", count, " ", test_support::test_seed() % 1'000'000'000, template_arguments()));
  ASSERT_EQ(run.status, 0) << run.output;
  const OutJson made = OutJson::parse(read_file(out));
  std::map<std::string, ChatTemplate> templates;
  for (const auto& [name, text] : made["templates"].items()) {
    templates.try_emplace(name, std::map<std::string, std::string>{{"default", text}}, made["special"]);
  }
  int rendered = 0, refused = 0;
  for (const OutJson& test : made["cases"]) {
    ChatRequest request{.messages = test["messages"],
                        .tools = test["tools"],
                        .documents = test["documents"],
                        .add_generation_prompt = test["add_generation_prompt"],
                        .variables = test["variables"]};
    if (test["continue"]) request.continue_final_message = "content";
    const std::string what =
        cat(test["template"].get<std::string>(), ", seed ", test["seed"].get<int64_t>(), "\n", test["messages"].dump());
    try {
      const RenderedChat chat = templates.at(test["template"]).render_with_spans(request);
      EXPECT_FALSE(test.contains("error")) << what << "\nhere: " << chat.text << "\ntransformers: " << test["error"];
      EXPECT_EQ(chat.text, test.value("text", chat.text)) << what;
      if (test.contains("spans")) {
        EXPECT_EQ(in_characters(chat), test["spans"]) << what;
      }
      ++rendered;
    } catch (const Error& error) {
      EXPECT_TRUE(test.contains("error")) << what << "\nhere: " << error.what() << "\ntransformers: " << test["text"];
      ++refused;
    }
    if (HasFailure()) return;
  }
  std::printf("%zu templates: %d conversations rendered, %d refused, as by transformers\n", templates.size(), rendered,
              refused);
  EXPECT_GT(rendered, count / 3);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace hotswap
