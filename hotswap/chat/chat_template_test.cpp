#include "hotswap/chat/chat_template.h"

#include <gtest/gtest.h>

#include "hotswap/base/file.h"
#include "hotswap/base/test_data.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

const OutJson kMessages =
    OutJson::parse(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello the"}])");
constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt "
    "%}<assistant>{% endif %}";

ChatTemplate plain() { return ChatTemplate({{"default", kPlain}}, {{"eos_token", "</s>"}}); }

// What transformers rendered, with the ids of the text.
class GoldenChats : public testing::TestWithParam<const char*> {};

TEST_P(GoldenChats, AreRenderedAsTransformersDoes) {
  const auto folder = test_support::recorded_data() / GetParam();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const OutJson golden = OutJson::parse(read_file(folder / "chat_golden.json"));
  const auto chat = ChatTemplate::from_folder(folder);
  const auto tokenizer = Tokenizer::from_folder(folder);
  for (const auto& test : golden["cases"]) {
    ChatRequest request{.messages = test["messages"],
                        .add_generation_prompt = test["add_generation_prompt"].get<bool>()};
    if (test.contains("tools")) request.tools = test["tools"];
    if (test.contains("template_kwargs")) request.variables = test["template_kwargs"];
    EXPECT_EQ(chat.render(request), test["rendered"].get<std::string>()) << test["name"];
    EXPECT_EQ(chat.ids(tokenizer, request), test["ids"].get<std::vector<int64_t>>()) << test["name"];
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, GoldenChats,
                         testing::Values("models/smollm2-135m-instruct", "tokenizers/qwen3",
                                         "tokenizers/mistral-v0.3"));

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  EXPECT_EQ(plain().render({.messages = kMessages, .continue_final_message = "content"}),
            "<user>Hi</s><assistant>Hello the");
  OutJson parts = kMessages;
  parts[1]["content"] = OutJson::parse(R"([{"type": "text", "text": "Hello the "}])");
  const ChatTemplate trims(
      {{"default",
        "{% for m in messages %}{{ (m.content if m.content is string else m.content[0].text)|trim }}.{% endfor %}"}},
      {});
  EXPECT_EQ(trims.render({.messages = parts, .continue_final_message = "content"}), "Hi.Hello the");
  EXPECT_THROW(
      plain().render({.messages = kMessages, .add_generation_prompt = true, .continue_final_message = "content"}),
      Error);
  EXPECT_THROW(plain().render({.messages = kMessages, .continue_final_message = "thinking"}), Error);
  EXPECT_THROW(plain().render({.messages = OutJson::array(), .continue_final_message = "content"}), Error);
}

TEST(ChatTemplate, OfSeveralTheNameOrTheToolsChoose) {
  const ChatTemplate chat({{"default", "d"}, {"tool_use", "t"}, {"rag", "r"}}, {});
  EXPECT_EQ(chat.render({.messages = kMessages}), "d");
  EXPECT_EQ(chat.render({.messages = kMessages, .tools = OutJson::parse(R"([{"name": "f"}])")}), "t");
  EXPECT_EQ(chat.render({.messages = kMessages, .name = "rag"}), "r");
  EXPECT_THROW(chat.render({.messages = kMessages, .name = "none"}), Error);
  EXPECT_THROW(ChatTemplate({{"rag", "r"}}, {}).render({.messages = kMessages}), Error);
}

TEST(ChatTemplate, MessagesOfAnotherFormAreRefused) {
  EXPECT_THROW(plain().render({.messages = "Hi"}), Error);
  EXPECT_THROW(plain().render({.messages = OutJson::array({"Hi"})}), Error);
  EXPECT_THROW(plain().render({.messages = kMessages, .tools = "f"}), Error);
}

TEST(ChatTemplate, AFoldersFiles) {
  const test_support::TempFolder folder;
  EXPECT_THROW(ChatTemplate::from_folder(folder.path()), Error);
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "{{ bos_token }}c"}]})");
  EXPECT_EQ(ChatTemplate::from_folder(folder.path()).render({.messages = kMessages}), "<s>c");
  folder.write("chat_template.jinja", "file");
  folder.write("additional_chat_templates/rag.jinja", "more");
  const auto chat = ChatTemplate::from_folder(folder.path());
  EXPECT_EQ(chat.render({.messages = kMessages}), "file");
  EXPECT_EQ(chat.render({.messages = kMessages, .name = "rag"}), "more");
}

}  // namespace
}  // namespace hotswap
