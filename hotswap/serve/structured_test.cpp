// Structured output over HTTP: response_format, structured_outputs, their refusals, and what happens in company.
#include "hotswap/grammar/schema_validator.h"
#include "hotswap/grammar/xgrammar.h"
#include "hotswap/serve/grammar_compiler.h"
#include "hotswap/serve/grammar_constraint.h"
#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using test_support::byte_tokenizer;
using test_support::expect_has;
using test_support::kEnd;
using test_support::OutJson;
using test_support::ScopedEnv;
using test_support::TempFolder;

class Structured : public test_support::Served {
 protected:
  void SetUp() override {
    const auto found = grammar::find_xgrammar();
    if (!found) GTEST_SKIP() << found.why();
    test_support::Served::SetUp();
  }
  static OutJson schema_format(const OutJson& schema) {
    return {{"type", "json_schema"}, {"json_schema", {{"name", "answer"}, {"schema", schema}}}};
  }
  // An answer that ended, drawn with the seed; the end is made likely.
  OutJson answer(OutJson more, uint64_t seed = 1) const {
    OutJson body = {
        {"seed", seed}, {"temperature", 1}, {"logit_bias", {{"256", 10}, {"34", 4}, {"125", 6}, {"93", 6}}}};
    body.update(more);
    return chat(body);
  }
  static std::string text_of_answer(const OutJson& answer) { return answer["choices"][0]["message"]["content"]; }
  std::string metrics() const { return client().Get("/metrics")->body; }
};

const OutJson kPerson = {{"type", "object"},
                         {"properties",
                          {{"name", {{"type", "string"}, {"maxLength", 8}}},
                           {"age", {{"type", "integer"}, {"minimum", 0}, {"maximum", 150}}}}},
                         {"required", {"name", "age"}},
                         {"additionalProperties", false}};

TEST_F(Structured, AnswersFitTheirSchema) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const OutJson whole = answer({{"response_format", schema_format(kPerson)}}, seed);
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop") << whole;
    EXPECT_EQ(grammar::answer_problem(kPerson, text_of_answer(whole)), "") << whole;
    EXPECT_FALSE(whole["choices"][0].contains("structured_output_error"));
  }
  const OutJson greedy = chat({{"temperature", 0}, {"response_format", schema_format({{"enum", {"yes", "no"}}})}});
  EXPECT_TRUE(text_of_answer(greedy) == "\"yes\"" || text_of_answer(greedy) == "\"no\"") << greedy;
  const OutJson object = answer({{"response_format", {{"type", "json_object"}}}});
  if (object["choices"][0]["finish_reason"] == "stop") {
    EXPECT_TRUE(OutJson::parse(text_of_answer(object)).is_object()) << object;
  }
  const OutJson with_schema = answer({{"response_format", {{"type", "json_object"}, {"schema", kPerson}}}});
  EXPECT_EQ(grammar::answer_problem(kPerson, text_of_answer(with_schema)), "") << with_schema;
  expect_has(metrics(), {"hotswap:structured_output_invalid_total{model_name=\"tiny\"} 0"});
  expect_nothing_left();
}

TEST_F(Structured, AStreamHasTheSameText) {
  OutJson body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                  {"seed", 3},
                  {"logit_bias", {{"256", 10}, {"34", 4}}},
                  {"response_format", schema_format(kPerson)}};
  const OutJson whole = post("/v1/chat/completions", body);
  body["stream"] = true;
  std::string text;
  for (const OutJson& chunk : events("/v1/chat/completions", body))
    text += chunk["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(text, text_of_answer(whole));
}

TEST_F(Structured, RegexChoiceAndGrammar) {
  const auto constrained = [&](const OutJson& rules) {
    return text_of_answer(answer({{"structured_outputs", rules}}));
  };
  EXPECT_EQ(constrained({{"choice", {"only this"}}}), "only this");
  EXPECT_EQ(constrained({{"regex", "ab{2}c"}, {"json", nullptr}}), "abbc");
  EXPECT_EQ(constrained({{"grammar", "root ::= \"x\" y\ny ::= \"z\""}}), "xz");
  EXPECT_EQ(constrained({{"json", "{\"const\": [1]}"}}), "[1]");
  EXPECT_EQ(text_of_answer(answer({{"guided_choice", {"old name"}}})), "old name");
  EXPECT_EQ(text_of_answer(answer({{"grammar", "root ::= \"llama\""}})), "llama");
  EXPECT_EQ(complete("a", {{"structured_outputs", {{"choice", {"b"}}}}})["choices"][0]["text"], "b");
}

TEST_F(Structured, RefusalsNameTheFieldAndTheKeyword) {
  const auto refused = [&](const OutJson& more, const std::string& param, const std::string& what) {
    const OutJson error = chat(more, 400)["error"];
    EXPECT_EQ(error["param"], param) << error;
    expect_has(error["message"], {"expected", what});
  };
  refused({{"response_format", schema_format({{"multipleOf", 3}})}}, "response_format", "'multipleOf'");
  refused({{"response_format", schema_format({{"pattern", "(?=a)"}})}}, "response_format", "look-around");
  refused({{"response_format", schema_format({{"type", "integer"}, {"minimum", 2}, {"maximum", 1}})}},
          "response_format", "no value");
  refused({{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", 1}}}}}},
          "response_format", "schema");
  refused({{"structured_outputs", {{"regex", "["}}}}, "structured_outputs", "without its ]");
  refused({{"structured_outputs", {{"grammar", "root ::= missing"}}}}, "structured_outputs", "no rule missing");
  refused({{"structured_outputs", {{"regex", "a"}, {"choice", {"a"}}}}}, "structured_outputs", "two");
  refused({{"structured_outputs", OutJson::object()}}, "structured_outputs", "none");
  refused({{"structured_outputs", {{"choice", OutJson::array()}}}}, "structured_outputs", "choices");
  refused({{"structured_outputs", {{"json", "{"}}}}, "structured_outputs", "JSON Schema");
  refused({{"response_format", {{"type", "json_object"}}}, {"structured_outputs", {{"regex", "a"}}}},
          "structured_outputs", "one constraint");
}

// What ends the answer of one request, or refuses it, leaves the others as they are.
TEST_F(Structured, BadOnesEndNoOthers) {
  const OutJson calm = {{"temperature", 0}, {"max_tokens", 40}, {"ignore_eos", true}};
  const std::string expected = text_of_answer(chat(calm));
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { right += text_of_answer(chat(calm)) == expected ? 1 : 0; });
    threads.emplace_back([&, i] {
      chat({{"response_format", schema_format({{"type", "string"}, {"pattern", i % 2 == 0 ? "(" : "\\q"}})}}, 400);
      answer({{"response_format", schema_format(kPerson)}}, static_cast<uint64_t>(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4);
  EXPECT_EQ(client().Get("/health")->status, 200);
  expect_nothing_left();
}

TEST_F(Structured, EndsComeOnlyWhereTheGrammarMayEnd) {
  // An end that would be chosen always, were it allowed.
  OutJson body = {{"temperature", 0}, {"logit_bias", {{"256", 100}}}, {"structured_outputs", {{"regex", "a{3,9}"}}}};
  EXPECT_EQ(text_of_answer(chat(body)), "aaa");
  body["min_tokens"] = 6;
  EXPECT_EQ(text_of_answer(chat(body)), "aaaaaa");
  body["min_tokens"] = 50;
  EXPECT_EQ(text_of_answer(chat(body)), "aaaaaaaaa") << "the grammar ends before";
  body["ignore_eos"] = true;
  EXPECT_EQ(chat(body)["choices"][0]["finish_reason"], "stop");
  body["max_tokens"] = 2;
  EXPECT_EQ(chat(body)["choices"][0]["finish_reason"], "length");
}

TEST_F(Structured, LogprobsAreOfRawLogits) {
  const OutJson free = chat({{"temperature", 0}, {"max_tokens", 1}, {"logprobs", true}, {"top_logprobs", 5}});
  const OutJson held = chat({{"temperature", 0},
                             {"max_tokens", 1},
                             {"logprobs", true},
                             {"top_logprobs", 5},
                             {"structured_outputs", {{"choice", {"\x01"}}}}});
  EXPECT_EQ(held["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
            free["choices"][0]["logprobs"]["content"][0]["top_logprobs"]);
  EXPECT_LT(held["choices"][0]["logprobs"]["content"][0]["logprob"],
            free["choices"][0]["logprobs"]["content"][0]["logprob"]);
}

TEST_F(Structured, SeveralAnswersOfOneRequest) {
  const OutJson three = answer({{"n", 3}, {"response_format", schema_format(kPerson)}});
  for (const OutJson& choice : three["choices"]) {
    EXPECT_EQ(grammar::answer_problem(kPerson, choice["message"]["content"]), "") << choice;
  }
}

TEST(StructuredMissing, IsReportedWithTheReason) {
  const TempFolder empty;
  const ScopedEnv env("HOTSWAP_GRAMMAR", empty.path().string());
  serve::Server server(test_support::byte_served(), {});
  server.start();
  httplib::Client client(server.url());
  const OutJson body = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
                        {"response_format", {{"type", "json_object"}}}};
  const auto result = client.Post("/v1/chat/completions", body.dump(), "application/json");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 501);
  EXPECT_EQ(result->get_header_value("x-should-retry"), "false");
  expect_has(result->body, {"libxgrammar_bindings.so", "pip install", "\"param\":\"response_format\""});
}

TEST_F(Structured, CompilationsAreKeptAndHaveADeadline) {
  serve::GrammarCompiler compiler(byte_tokenizer(), 260, {kEnd});
  const auto first = compiler.compile("root ::= \"a\"");
  EXPECT_EQ(compiler.compile("root ::= \"a\""), first);
  EXPECT_NE(compiler.compile("root ::= \"b\""), first);
  serve::GrammarCompiler forgetful(byte_tokenizer(), 260, {kEnd}, {}, {.cache_bytes = 0});
  EXPECT_NE(forgetful.compile("root ::= \"a\""), forgetful.compile("root ::= \"a\""));
  serve::GrammarCompiler hasty(byte_tokenizer(), 260, {kEnd}, {}, {.deadline = std::chrono::milliseconds(0)});
  std::string large = "root ::= r0\n";
  for (int i = 0; i < 3000; ++i) large += cat("r", i, " ::= [a-z]{2,9} r", (i + 1) % 3000, " | \"", i, "\"\n");
  try {
    hasty.compile(large);
    ADD_FAILURE() << "no deadline";
  } catch (const serve::ApiError& error) {
    EXPECT_TRUE(error.status == 400 || error.status == 503) << error.what();
  }
}

// </think> in pieces; no end before it, and nothing of the grammar.
TEST_F(Structured, AGrammarBeginsAfterThoughts) {
  serve::GrammarCompiler compiler(byte_tokenizer(), 260, {kEnd});
  serve::GrammarConstraint constraint(compiler.compile("root ::= \"ok\"")->matcher(), byte_tokenizer(), {kEnd}, true);
  std::vector<int32_t> words(9);
  const auto may = [&](int64_t id) {
    constraint.allowed(words);
    return (words[id / 32] >> (id % 32) & 1) != 0;
  };
  for (const char c : std::string("so: </thin</think>")) {
    EXPECT_TRUE(may('z'));
    EXPECT_FALSE(may(kEnd));
    constraint.accept(c);
  }
  EXPECT_FALSE(may('z'));
  EXPECT_TRUE(may('o'));
  constraint.accept('o');
  EXPECT_FALSE(may(kEnd));
  constraint.accept('k');
  EXPECT_TRUE(may(kEnd));
  constraint.accept(kEnd);
  EXPECT_TRUE(constraint.ended());
}

}  // namespace
}  // namespace hotswap
