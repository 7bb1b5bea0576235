// What users of other servers complained of in public, by the number of the report there, and the test that holds it
// here. Those that no other test has are below.
//
//   llama.cpp 11681, 9016     a context divided by the slots        OneRequestHasTheWholeLengthWhateverTheRows
//   llama.cpp 23652           all answers aborted: memory is full   Reuse.SequencesThatHadToWaitAnswerAsIfTheyHadNot
//   llama.cpp 14157, 21831    windowed models run a prompt again    ABeginningIsKeptInEveryFamilyWithKeys, and
//                                                                   EveryFamilyReused of engine/prefix_cache_test.cpp
//   llama.cpp 19051           a bad schema runs unconstrained       Structured.RefusalsNameTheFieldAndTheKeyword,
//                                                                   StructuredMissing.IsReportedWithTheReason
//   llama.cpp 20532           500 where a call does not parse       ACallThatDoesNotParseIsContent
//   llama.cpp 25510           500 for a history of bad calls        Protocol.ArgumentsOfToolCallsThatAreNoJsonStayText
//   llama.cpp 25283, 25284    a schema's pattern ends the process   APatternEndsNoProcess, Schemas.HostileOnesEnd
//   vLLM 17313, 17248         one bad schema ends all               Structured.BadOnesEndNoOthers
//   vLLM 19270, 43920         the same                              Structured.BadOnesEndNoOthers
//   vLLM 52011                {} runs on in digits                  AnyJsonEnds
//   vLLM 23138, 15437         greedy differs under load             Load.ATextDoesNotDependOnItsCompany
//   vLLM 40896                the second of equal requests differs  EqualRequestsHaveEqualAnswers
//   vLLM 54947, SGLang 36475  a client that left runs on            Load.ALeavingClientIsFreed
//   transformers serve        fields of the protocol are refused    FieldsThatOthersRefuseAreServed
//   transformers serve        one setting for a whole batch         Load.ATextDoesNotDependOnItsCompany
//   transformers serve        open to any page, no keys             Load.ForeignPagesAndKeys
#include <thread>

#include "hotswap/grammar/xgrammar.h"
#include "hotswap/models/family.h"
#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using test_support::byte_served;
using test_support::expect_has;
using test_support::kLength;
using test_support::OutJson;

class Complaints : public test_support::Served {
 protected:
  static OutJson greedy(const std::string& prompt, int64_t tokens) {
    return {{"prompt", prompt}, {"temperature", 0}, {"max_tokens", tokens}, {"ignore_eos", true}};
  }
};

class ComplaintsOfForms : public Complaints {
 protected:
  void SetUp() override {
    const auto found = grammar::find_xgrammar();
    if (!found) GTEST_SKIP() << found.why();
    Complaints::SetUp();
  }
};

TEST_F(Complaints, OneRequestHasTheWholeLengthWhateverTheRows) {
  start({.engine = {.rows = 8}});
  std::vector<OutJson> got(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&, i] { got[i] = post("/v1/completions", greedy("abc", kLength - 3)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const OutJson& one : got) EXPECT_EQ(one["usage"]["total_tokens"], kLength) << one;
  expect_nothing_left();
}

// A window is no reason to run a prompt again.
TEST_F(Complaints, ABeginningIsKeptInEveryFamilyWithKeys) {
  for (const char* family : {"gemma2", "gemma3_text", "gpt_oss", "qwen3"}) {
    serve::ServedModel model = byte_served();
    const auto& all = families();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Family* one) { return one->model_type == std::string(family); });
    if (found == all.end()) continue;
    model.model = test_support::tiny(family, at::kCPU, at::kFloat, 16);
    model.max_model_len = 128;
    server =
        std::make_unique<serve::Server>(model, serve::ServerOptions{.engine = {.prefix_tokens = 1024, .chunk = 16}});
    server->start();
    OutJson ids = OutJson::array();
    for (int i = 0; i < 60; ++i) ids.push_back(3 + i * 7 % 40);
    const OutJson body = {{"prompt", ids}, {"temperature", 0}, {"max_tokens", 4}, {"ignore_eos", true}};
    const OutJson first = post("/v1/completions", body), second = post("/v1/completions", body);
    EXPECT_EQ(second["usage"]["prompt_tokens_details"]["cached_tokens"], 48) << family << second;
    EXPECT_EQ(first["choices"], second["choices"]) << family;
  }
}

TEST_F(Complaints, EqualRequestsHaveEqualAnswers) {
  start({.engine = {.prefix_tokens = 1024, .chunk = 16}});
  OutJson body = greedy(std::string(100, 'x') + "yz", 60);
  body["logprobs"] = 2;
  const OutJson first = post("/v1/completions", body);
  for (int i = 0; i < 3; ++i) {
    const OutJson again = post("/v1/completions", body);
    EXPECT_EQ(again["choices"], first["choices"]) << "to the last bit of the logprobs";
    EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  }
}

TEST_F(Complaints, FieldsThatOthersRefuseAreServed) {
  const OutJson body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                        {"n", 2},
                        {"logprobs", true},
                        {"top_logprobs", 3},
                        {"max_completion_tokens", 4},
                        {"response_format", {{"type", "text"}}},
                        {"tool_choice", "none"},
                        {"stream", true},
                        {"stream_options", {{"include_usage", true}}},
                        {"presence_penalty", 0.5},
                        {"frequency_penalty", -0.5},
                        {"reasoning_effort", "low"},
                        {"seed", 3}};
  bool done = false;
  const auto chunks = events("/v1/chat/completions", body, &done);
  ASSERT_TRUE(done);
  EXPECT_GT(chunks.back()["usage"]["completion_tokens"].get<int>(), 0) << chunks.back();
}

// The text that its pattern demands begins as a call and is none: it is content, and the request is answered.
TEST_F(ComplaintsOfForms, ACallThatDoesNotParseIsContent) {
  start({}, ChatTemplate({{"default", "{% if tools %}<tool_call>{% endif %}{{ messages[0].content }}<|assistant|>"}},
                         OutJson::object()));
  const OutJson tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  const OutJson answer = chat({{"tools", {tool}},
                               {"structured_outputs", {{"regex", "<tool_call>\\{\"name\": 3, broken"}}},
                               {"logit_bias", {{"10", -100}}}});  // no line end, with which calls begin
  const OutJson& message = answer["choices"][0]["message"];
  EXPECT_EQ(message["content"], "<tool_call>{\"name\": 3, broken") << answer;
  EXPECT_FALSE(message.contains("tool_calls"));
  expect_has(client().Get("/metrics")->body, {"hotswap:tool_calls_unparsed_total{model_name=\"tiny\"} 1"});
}

TEST_F(ComplaintsOfForms, APatternEndsNoProcess) {
  const std::vector<std::string> patterns = {std::string(3000, '('),
                                             "(a+)+$",
                                             "a{1000}{1000}{1000}",
                                             "(?<n>a)\\k<n>",
                                             "[\\",
                                             "\\p{Nope}",
                                             "(?=(?=(?=a)))",
                                             "a{999999999999}",
                                             "^(((((((((((a*)*)*)*)*)*)*)*)*)*)*)$"};
  for (const std::string& pattern : patterns) {
    for (const char* field : {"response_format", "structured_outputs"}) {
      const OutJson form =
          field == std::string("response_format")
              ? OutJson{{"type", "json_schema"},
                        {"json_schema", {{"name", "n"}, {"schema", {{"type", "string"}, {"pattern", pattern}}}}}}
              : OutJson{{"regex", pattern}};
      auto http = client();
      const OutJson body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 2}, {field, form}};
      const auto result = http.Post("/v1/chat/completions", text_of(body), "application/json");
      ASSERT_TRUE(result) << pattern.substr(0, 40);
      EXPECT_TRUE(result->status == 200 || result->status == 400) << result->status << " " << pattern.substr(0, 40);
    }
  }
  EXPECT_EQ(client().Get("/health")->status, 200);
  expect_nothing_left();
}

// A model that writes one digit after another.
TEST_F(ComplaintsOfForms, AnyJsonEnds) {
  const OutJson answer =
      chat({{"temperature", 0},
            {"logit_bias", {{"49", 100}}},
            {"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", OutJson::object()}}}}}});
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop") << answer;
  EXPECT_TRUE(OutJson::parse(answer["choices"][0]["message"]["content"].get<std::string>()).is_number()) << answer;
  EXPECT_LT(answer["usage"]["completion_tokens"], 40) << answer;
}

}  // namespace
}  // namespace hotswap
