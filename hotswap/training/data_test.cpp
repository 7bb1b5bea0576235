// Files of examples: what is learned of each form, and how bad data is refused.
#include <gtest/gtest.h>

#include "hotswap/base/test_data.h"
#include "hotswap/training/data/train_file.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

// A template of the ChatML kind, with and without marks of what the assistant writes.
constexpr const char* kPlain =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";
constexpr const char* kMarked =
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}{{ m.content }}</s>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";
// Writes an assistant's turn otherwise once another one follows, as templates that drop old thoughts do.
constexpr const char* kForgetful =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content if loop.last else '...' }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

class TrainFileTest : public test_support::WithTransformers<> {
 protected:
  TrainFileTest()
      : tokenizer_(Tokenizer::from_pretrained(test_support::made_data("models/golden_model.py") / "models/tiny")) {}

  TrainFile read(const std::string& name, const std::string& bytes, TrainFileOptions options = {}) const {
    return read_train_file(folder_.write(name, bytes), tokenizer_, options);
  }
  const Example& first(const TrainFile& file) const {
    return dynamic_cast<const ExampleDataset&>(*file.dataset).examples().at(0);
  }
  std::string learned(const Example& example) const {
    std::vector<int64_t> ids;
    for (const int64_t label : example.labels) {
      if (label != -100) ids.push_back(label);
    }
    return tokenizer_.decode(ids);
  }
  static ChatTemplate chat(const char* source) { return {{{"default", source}}, nlohmann::ordered_json::object()}; }
  void fails(const std::string& name, const std::string& bytes, std::initializer_list<std::string> parts,
             const TrainFileOptions& options = {}) const {
    expect_has(message_of([&] { read(name, bytes, options); }), parts);
  }

  TempFolder folder_;
  Tokenizer tokenizer_;
};

TEST_F(TrainFileTest, TextIsCutIntoPieces) {
  const std::string text = "You may reproduce and distribute copies of the Work in any medium.";
  const auto ids = tokenizer_.ids(text);
  const TrainFile file = read("a.txt", text, {.max_length = 5});
  EXPECT_EQ(file.dataset->size(), static_cast<int64_t>(ids.size()) / 5);
  EXPECT_EQ(file.dropped, static_cast<int64_t>(ids.size()) % 5);
  EXPECT_EQ(read("a.txt", text).dataset->size(), 1) << "shorter than one piece: as it is";
  EXPECT_EQ(read("a.txt", text).dropped, 0);
}

TEST_F(TrainFileTest, OfATextEveryTokenIsLearned) {
  const TrainFile file = read("a.jsonl", "{\"text\": \"You may\"}\n\n{\"text\": \"the Work\", \"id\": 7}\n");
  EXPECT_EQ(file.dataset->size(), 2);
  const Example& example = first(file);
  EXPECT_EQ(example.labels, example.ids);
  EXPECT_EQ(example.ids.back(), tokenizer_.special_ids().eos) << "the end of the text";
}

TEST_F(TrainFileTest, OfAPromptTheCompletionIsLearned) {
  const TrainFile file = read("a.jsonl", R"({"prompt": "You may", "completion": " reproduce the Work"})");
  EXPECT_EQ(tokenizer_.decode(first(file).ids, true),
            tokenizer_.decode(tokenizer_.ids("You may reproduce the Work"), true));
  // From the first token on that the prompt by itself does not have: "may" and " reproduce" share a token here.
  EXPECT_TRUE(learned(first(file)).ends_with(" reproduce the Work</s>")) << learned(first(file));
  EXPECT_EQ(first(file).labels[0], -100);
  const TrainFile turns = read(
      "b.jsonl",
      R"({"prompt": [{"role": "user", "content": "You may"}], "completion": [{"role": "assistant", "content": "the Work"}]})",
      {.chat = chat(kPlain)});
  EXPECT_TRUE(learned(first(turns)).starts_with("the Work</s>")) << learned(first(turns));
}

TEST_F(TrainFileTest, OfMessagesTheAssistantsTurnsAreLearned) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "You may"}, {"role": "assistant", "content": "the Work"},)"
      R"({"role": "user", "content": "Contributor é"}, {"role": "assistant", "content": "License"}]})";
  for (const char* source : {kPlain, kMarked}) {
    const TrainFile file = read("a.jsonl", line, {.chat = chat(source)});
    EXPECT_EQ(learned(first(file)), "the Work</s>License</s>") << source;
    EXPECT_LT(file.learned, file.tokens);
  }
  fails("a.jsonl", line, {"a.jsonl:1", "message 2 of 4", "{% generation %}"}, {.chat = chat(kForgetful)});
  fails("a.jsonl", line, {"a.jsonl:1", "chat template"});
}

TEST_F(TrainFileTest, ATurnOfCallsNeedsNoContent) {
  const TrainFile file = read("a.jsonl",
                              R"({"messages": [{"role": "user", "content": "You may"}, {"role": "assistant", )"
                              R"("content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},)"
                              R"({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]})",
                              {.chat = chat(kPlain)});
  EXPECT_EQ(file.dataset->size(), 1);
}

TEST_F(TrainFileTest, LongExamplesAreCutAndThoseWithoutLabelsDropped) {
  const std::string lines =
      "{\"prompt\": \"You may reproduce and distribute copies\", \"completion\": \" of\"}\n"
      "{\"prompt\": \"a\", \"completion\": \" reproduce and distribute copies of the Work in any medium\"}\n";
  const TrainFile file = read("a.jsonl", lines, {.max_length = 4});
  EXPECT_EQ(file.dataset->size(), 1);
  EXPECT_EQ(file.cut, 2);
  EXPECT_EQ(file.dropped, 1);
  EXPECT_EQ(file.tokens, 4);
  EXPECT_EQ(file.longest, 4);
  fails("a.jsonl", lines.substr(0, lines.find('\n')), {"1 examples without", "--max-length"}, {.max_length = 4});
}

TEST_F(TrainFileTest, BadDataIsNamedByFileAndLine) {
  const std::string good = "{\"text\": \"You may\"}\n";
  fails("a.jsonl", good + "{\"text\": \"You", {"a.jsonl:2"});
  fails("a.jsonl", good + good + "{\"text\": \"\xff\"}", {"a.jsonl:3", "UTF-8", "offset 10"});
  fails("a.jsonl", good + "{\"txt\": \"You\"}", {"a.jsonl:2", "\"messages\"", "txt"});
  fails("a.jsonl", good + "{\"prompt\": \"You\"}", {"a.jsonl:2", "\"completion\"", "prompt"});
  fails("a.jsonl", good + "{\"prompt\": \"a\", \"completion\": \"b\"}",
        {"a.jsonl:2", "one form", "prompt and completion"});
  fails("a.jsonl", "{\"text\": 7}", {"a.jsonl:1: text", "a string"});
  fails("a.jsonl", "[1]", {"a.jsonl:1", "object"});
  fails("a.jsonl", "\n \n", {"a.jsonl", "no line"});
  fails("a.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})", {"a.jsonl:1", "assistant"});
  const std::string user = R"({"messages": [{"role": "user", "content": "a"}, )";
  for (const char* turn : {R"({"role": "assistant"})", R"({"role": "assistant", "content": null})",
                           R"({"role": "assistant", "content": null, "tool_calls": []})"}) {
    fails("a.jsonl", user + turn + "]}", {"a.jsonl:1", "message 2", "\"tool_calls\"", "role"}, {.chat = chat(kPlain)});
    fails("a.jsonl", cat(R"({"prompt": [{"role": "user", "content": "a"}], "completion": [)", turn, "]}"),
          {"a.jsonl:1", "message 1", "\"content\""}, {.chat = chat(kPlain)});
  }
  fails("a.jsonl", R"({"messages": [{"role": "user"}, {"role": "assistant", "content": "b"}]})",
        {"a.jsonl:1", "message 1"}, {.chat = chat(kPlain)});
  fails("a.jsonl", R"({"messages": "hello"})", {"a.jsonl:1: messages"});
  fails("a.txt", "ab\xc3(", {"a.txt", "UTF-8", "offset 2"});
  fails("a.txt", "", {"a.txt"});
  fails("a.csv", "a,b", {"a.csv", ".jsonl"});
  fails("a.jsonl", std::string((64 << 20) + 1, ' ') + "x", {"a.jsonl", "line 1", "64 MiB"});
  fails("a.txt", "You may", {"max_length"}, {.max_length = 1});
  expect_has(message_of([&] { read_train_file(folder_ / "none.jsonl", tokenizer_, {}); }), {"none.jsonl"});
}

}  // namespace
}  // namespace hotswap
