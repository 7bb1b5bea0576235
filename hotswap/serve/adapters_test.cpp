// Several LoRA adapters in one server: each request is answered as a server of only its model would answer it.
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <thread>

#include "hotswap/models/lora.h"
#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using test_support::OutJson;

// Adapters that differ in rank, targets and scaling; one is DoRA. B is not 0, so that each changes the model.
LoraConfig adapter_config(const std::string& name) {
  LoraConfig config{.init_lora_weights = "false"};
  if (name == "sql") {
    config.r = 4, config.lora_alpha = 16, config.target_modules = {"q_proj", "v_proj"};
  } else if (name == "poet") {
    config.r = 2, config.lora_alpha = 6, config.use_rslora = true, config.target_modules = "all-linear";
  } else {
    config.r = 3, config.lora_alpha = 12, config.use_dora = true, config.target_modules = {"down_proj", "o_proj"};
  }
  return config;
}

serve::ServedModel served_with(const std::vector<std::string>& adapters, bool kernels) {
  serve::ServedModel served = test_support::byte_served();
  for (const std::string& name : adapters) {
    const auto fresh = LoraAdapter::fresh(*served.model, adapter_config(name), /*seed=*/name.size() * 7);
    served.model->add_row_adapter(fresh, {});
    served.adapters.push_back({name, "folder/" + name});
  }
  if (kernels) served.model->kernelize(Mode::INFERENCE);
  return served;
}

class Adapters : public test_support::Served, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {}
  void serve(const std::vector<std::string>& adapters, serve::ServerOptions options = {}) {
    options.engine.rows = 8;
    server = std::make_unique<serve::Server>(served_with(adapters, GetParam()), options);
    server->start();
  }
  static OutJson body(const std::string& model, const std::string& prompt) {
    return {{"model", model},   {"prompt", prompt},   {"temperature", 0},
            {"max_tokens", 12}, {"ignore_eos", true}, {"logprobs", 2}};
  }
  OutJson choices(const std::string& model, const std::string& prompt) const {
    return post("/v1/completions", body(model, prompt))["choices"];
  }
  static int64_t cached(const OutJson& answer) { return answer["usage"]["prompt_tokens_details"]["cached_tokens"]; }
};

const std::vector<std::string> kAll = {"sql", "poet", "dora"};

TEST_P(Adapters, OneBatchEqualsServersOfOneModelEach) {
  struct Request {
    std::string model, prompt;
    OutJson single, company;
  };
  std::vector<Request> requests;
  for (const char* model : {"tiny", "sql", "poet", "dora"}) {
    for (const char* prompt : {"Gravity is", "SELECT", "a longer prompt than the others have"}) {
      requests.push_back({model, prompt, {}, {}});
    }
  }
  for (Request& one : requests) {
    serve(one.model == "tiny" ? std::vector<std::string>() : std::vector{one.model});
    one.single = choices(one.model, one.prompt);
  }
  serve(kAll);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < requests.size(); ++i) {  // another order in each round: rows have other neighbours
      Request& one = requests[(i * 5 + static_cast<size_t>(round) * 3) % requests.size()];
      threads.emplace_back([&] { one.company = choices(one.model, one.prompt); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Request& one : requests) EXPECT_EQ(one.company, one.single) << one.model << ": " << one.prompt;
  }
  EXPECT_NE(server->engine().why_exact(), "");
  std::set<std::string> different;
  for (const Request& one : requests) {
    if (one.prompt == "SELECT") different.insert(one.single.dump());
  }
  EXPECT_EQ(different.size(), 4) << "an adapter that changes nothing makes the rest meaningless";
  expect_nothing_left();
}

TEST_P(Adapters, WithoutExactnessTheyShareStepsToo) {
  serve(kAll, {.engine = {.exact = false}});
  std::map<std::string, std::string> single, company;
  for (const std::string name : {"tiny", "sql", "poet", "dora"}) single[name] = choices(name, "Gravity is")[0]["text"];
  for (const auto& [name, text] : single) company[name] = "";
  std::vector<std::thread> threads;
  for (auto& [name, text] : company) {
    threads.emplace_back([&, name = name] { text = choices(name, "Gravity is")[0]["text"]; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(company, single);
}

TEST_P(Adapters, EveryEndpointAnswersUnderTheRequestedName) {
  serve({"sql", "poet"});
  std::set<std::string> texts;
  for (const char* name : {"tiny", "alias", "sql", "poet"}) {
    const OutJson more = {{"model", name}, {"temperature", 0}, {"max_tokens", 9}, {"ignore_eos", true}};
    const OutJson whole = chat(more);
    EXPECT_EQ(whole["model"], name);
    const std::string text = whole["choices"][0]["message"]["content"];
    texts.insert(text);
    OutJson streamed = more;
    streamed.update(OutJson{{"stream", true}, {"messages", {{{"role", "user"}, {"content", "Hello"}}}}});
    std::string pieces;
    for (const OutJson& event : events("/v1/chat/completions", streamed)) {
      EXPECT_EQ(event["model"], name);
      if (event["choices"][0]["delta"].contains("content")) {
        pieces += event["choices"][0]["delta"]["content"].get<std::string>();
      }
    }
    EXPECT_EQ(pieces, text) << name;
    const OutJson response =
        post("/v1/responses",
             {{"model", name}, {"input", "Hello"}, {"temperature", 0}, {"max_output_tokens", 9}, {"ignore_eos", true}});
    EXPECT_EQ(response["model"], name);
    EXPECT_EQ(response["output"][0]["content"][0]["text"], text) << name;
  }
  EXPECT_EQ(texts.size(), 3) << "tiny and alias are one";
  OutJson unnamed = body("tiny", "SELECT");
  unnamed.erase("model");
  const OutJson answer = post("/v1/completions", unnamed);
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["choices"], choices("tiny", "SELECT"));
}

// The scores of a prompt are computed outside of the batch.
TEST_P(Adapters, EchoScoresByTheAdapter) {
  const auto scores = [&](const std::string& model) {
    OutJson request = body(model, "Gravity is");
    request.update(OutJson{{"echo", true}, {"max_tokens", 0}});
    return post("/v1/completions", request)["choices"][0]["logprobs"]["token_logprobs"];
  };
  serve({"poet"});
  const OutJson of_poet = scores("poet"), of_base = scores("tiny");
  serve({"sql", "poet"});
  EXPECT_EQ(scores("poet"), of_poet);
  EXPECT_EQ(scores("tiny"), of_base);
  EXPECT_NE(of_poet, of_base);
  EXPECT_NE(scores("sql"), of_poet);
}

TEST_P(Adapters, KeptKeysStayWithTheirAdapter) {
  serve({"sql", "poet"}, {.engine = {.prefix_tokens = 1024, .chunk = 32}});
  const std::string prompt(100, 'a');
  std::map<std::string, OutJson> first;
  for (const char* name : {"tiny", "sql", "poet"}) {
    first[name] = post("/v1/completions", body(name, prompt));
    EXPECT_EQ(cached(first[name]), 0) << name;
  }
  for (const char* name : {"poet", "tiny", "sql"}) {
    const OutJson again = post("/v1/completions", body(name, prompt));
    EXPECT_EQ(cached(again), 96) << name;
    EXPECT_EQ(again["choices"], first[name]["choices"]) << name;
  }
  // The salt of a request cannot make its keys another model's.
  OutJson salted = body("tiny", prompt);
  salted["cache_salt"] = "0\n";
  EXPECT_EQ(cached(post("/v1/completions", salted)), 0);
}

TEST_P(Adapters, AreListedWithTheirParent) {
  serve({"sql", "poet"});
  const OutJson all = OutJson::parse(client().Get("/v1/models")->body)["data"];
  std::map<std::string, OutJson> by_name;
  for (const OutJson& model : all) by_name[model["id"]] = model;
  ASSERT_EQ(by_name.size(), 4);
  EXPECT_EQ(by_name["sql"]["parent"], "tiny");
  EXPECT_EQ(by_name["sql"]["root"], "folder/sql");
  EXPECT_EQ(by_name["tiny"]["parent"], nullptr);
  EXPECT_EQ(OutJson::parse(client().Get("/v1/models/poet")->body)["parent"], "tiny");
  const OutJson error = post("/v1/completions", body("prose", "a"), 404)["error"];
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["param"], "model");
  test_support::expect_has(error["message"], {"'prose'", "tiny, alias, sql, poet"});
  EXPECT_EQ(client().Get("/v1/models/prose")->status, 404);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Adapters, testing::Bool(),
                         [](const auto& info) { return info.param ? "Kernelized" : "Stock"; });

TEST(AdapterReport, SaysThatRowsWithAnAdapterRunTheLayersParts) {
  for (const bool any : {false, true}) {
    const serve::ServedModel served = served_with(any ? std::vector<std::string>{"sql"} : std::vector<std::string>(),
                                                  /*kernels=*/true);
    std::ostringstream text;
    text << served.model->kernel_report();
    const std::string report = text.str();
    EXPECT_NE(report.find("more by its parts"), std::string::npos) << "the layer's kernel is bound\n" << report;
    EXPECT_EQ(report.find("rows with an adapter by its parts") != std::string::npos, any) << report;
  }
}

}  // namespace
}  // namespace hotswap
