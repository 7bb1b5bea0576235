// Fields and answers of the protocol, over HTTP, with a tiny model.
#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::kLength;
using test_support::OutJson;

class Protocol : public test_support::Served {};

TEST_F(Protocol, AChatIsAnsweredWholeAndAsAStreamOfTheSameText) {
  const OutJson whole = chat({{"temperature", 0}, {"max_tokens", 20}});
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["model"], "tiny");
  EXPECT_EQ(whole["choices"][0]["message"]["role"], "assistant");
  const int64_t made = whole["usage"]["completion_tokens"];
  EXPECT_EQ(whole["usage"]["total_tokens"], whole["usage"]["prompt_tokens"].get<int64_t>() + made);
  EXPECT_TRUE(made == 20 || whole["choices"][0]["finish_reason"] == "stop");

  bool done = false;
  const auto stream = events("/v1/chat/completions",
                             {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                              {"temperature", 0},
                              {"max_completion_tokens", 20},
                              {"stream", true},
                              {"stream_options", {{"include_usage", true}}}},
                             &done);
  ASSERT_GE(stream.size(), 3u);
  EXPECT_TRUE(done);
  EXPECT_EQ(stream[0]["choices"][0]["delta"]["role"], "assistant");
  for (size_t i = 0; i + 1 < stream.size(); ++i) EXPECT_TRUE(stream[i].at("usage").is_null());
  EXPECT_TRUE(stream.back()["choices"].empty());
  EXPECT_EQ(stream.back()["usage"], whole["usage"]);
  std::string text, reason;
  for (const OutJson& chunk : stream) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    if (chunk["choices"].empty()) continue;
    text += chunk["choices"][0]["delta"].value("content", "");
    if (chunk["choices"][0]["finish_reason"].is_string()) reason = chunk["choices"][0]["finish_reason"];
  }
  EXPECT_EQ(text, whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(reason, whole["choices"][0]["finish_reason"]);
  expect_nothing_left();
}

TEST_F(Protocol, EndsAndLimits) {
  const std::string text = complete("abc", {{"max_tokens", 30}, {"ignore_eos", true}})["choices"][0]["text"];
  ASSERT_GT(text.size(), 12u);
  // A stop text that begins inside what was made, whatever tokens it is of.
  const std::string stop = text.substr(5, 3);
  const OutJson stopped = complete("abc", {{"max_tokens", 30}, {"ignore_eos", true}, {"stop", stop}});
  EXPECT_EQ(stopped["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_LT(stopped["usage"]["completion_tokens"], 30);
  const std::string counted = "finished_reason=\"stop\"} 1\n";
  for (int i = 0; i < 500 && client().Get("/metrics")->body.find(counted) == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  expect_has(client().Get("/metrics")->body, {counted});  // a text that its stop text ended was not aborted
  const OutJson included = complete(
      "abc", {{"max_tokens", 30}, {"ignore_eos", true}, {"stop", {stop}}, {"include_stop_str_in_output", true}});
  EXPECT_EQ(included["choices"][0]["text"], text.substr(0, text.find(stop)) + stop);
  EXPECT_EQ(complete("abc", {{"max_tokens", 30}, {"ignore_eos", true}})["choices"][0]["finish_reason"], "length");
  // What is left of the model's length, where a chat sets no limit.
  const OutJson rest = chat({{"ignore_eos", true}, {"temperature", 0}});
  EXPECT_EQ(rest["usage"]["total_tokens"], kLength);
  expect_has(chat({{"max_tokens", kLength}}, 400)["error"]["code"], {"context_length_exceeded"});
  expect_has(complete(std::string(kLength + 10, 'a'), {}, 400)["error"]["code"], {"context_length_exceeded"});
}

TEST_F(Protocol, AnswersByChoiceAndSeed) {
  const auto texts = [&](const OutJson& more) {
    OutJson body = {{"n", 3}, {"seed", 7}, {"max_tokens", 12}, {"temperature", 1.5}, {"ignore_eos", true}};
    if (!more.is_null()) body.update(more);
    std::vector<std::string> out;
    const OutJson answer = chat(body);
    for (const OutJson& choice : answer["choices"]) {
      EXPECT_EQ(choice["index"], out.size());
      out.push_back(choice["message"]["content"]);
    }
    return out;
  };
  const auto first = texts({});
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(texts({}), first) << "the same seed";
  EXPECT_NE(first[0], first[1]) << "answer i has the seed + i";
  EXPECT_EQ(texts({{"seed", 8}})[0], first[1]);
  const auto greedy = texts({{"temperature", 0}});
  EXPECT_EQ(greedy[0], greedy[2]);
  EXPECT_EQ(texts({{"temperature", 1.5}, {"top_k", 1}})[0], greedy[0]);
  EXPECT_EQ(texts({{"temperature", 1.5}, {"top_p", 1e-6}})[0], greedy[0]);
  EXPECT_EQ(texts({{"temperature", 1.5}, {"min_p", 1}})[0], greedy[0]);
}

TEST_F(Protocol, BiasPenaltiesAndLogprobs) {
  const OutJson forced = complete("ab", {{"max_tokens", 4}, {"logit_bias", {{"120", 100}}}});  // 'x'
  EXPECT_EQ(forced["choices"][0]["text"], "xxxx");
  const OutJson shown =
      chat({{"max_tokens", 4}, {"logprobs", true}, {"top_logprobs", 3}, {"temperature", 0}, {"ignore_eos", true}});
  const OutJson& content = shown["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 4u);
  for (const OutJson& token : content) {
    ASSERT_EQ(token["top_logprobs"].size(), 3u);
    EXPECT_EQ(token["top_logprobs"][0]["logprob"], token["logprob"]) << "greedy takes the best";
    EXPECT_GE(token["top_logprobs"][1]["logprob"], token["top_logprobs"][2]["logprob"]);
    EXPECT_LE(token["logprob"], 0);
    EXPECT_EQ(token["bytes"].size(), 1u) << "a token is a byte here: " << token.dump();
  }
}

TEST_F(Protocol, EchoScoresThePrompt) {
  const OutJson scored = complete("hello", {{"max_tokens", 0}, {"echo", true}, {"logprobs", 1}});
  const OutJson& choice = scored["choices"][0];
  EXPECT_EQ(choice["text"], "hello");
  EXPECT_EQ(choice["logprobs"]["tokens"], (OutJson{"h", "e", "l", "l", "o"}));
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_EQ(choice["logprobs"]["text_offset"], (OutJson{0, 1, 2, 3, 4}));
  const OutJson more = complete("hello", {{"max_tokens", 1}, {"echo", true}, {"logprobs", 1}});
  EXPECT_EQ(more["choices"][0]["logprobs"]["token_logprobs"].size(), 6u);
  // What a prompt's last token had when it was the answer.
  const OutJson last = complete("hell", {{"max_tokens", 1}, {"logprobs", 0}, {"logit_bias", {{"111", 100}}}});
  EXPECT_NEAR(last["choices"][0]["logprobs"]["token_logprobs"][0].get<double>(),
              choice["logprobs"]["token_logprobs"][4].get<double>(), 1e-4);
}

// Whole, echoed and in pieces: where a token begins in the text, also of a text of broken characters.
TEST_F(Protocol, OffsetsOfLogprobsAreOfTheText) {
  const OutJson scored = complete("h\u00e9llo", {{"max_tokens", 0}, {"echo", true}, {"logprobs", 1}});
  EXPECT_EQ(scored["choices"][0]["logprobs"]["text_offset"], (OutJson{0, 1, 1, 2, 3, 4}));
  const OutJson more = {{"max_tokens", 40}, {"temperature", 3}, {"seed", 1}, {"logprobs", 0}, {"ignore_eos", true}};
  const OutJson whole = complete("h\u00e9llo", more)["choices"][0]["logprobs"];
  OutJson echo = more, body = more, pieces = OutJson::array(), moved = OutJson::array();
  echo["echo"] = true;
  for (const OutJson& offset : whole["text_offset"]) moved.push_back(offset.get<int64_t>() + 5);
  const OutJson echoed = complete("h\u00e9llo", echo)["choices"][0]["logprobs"]["text_offset"];
  EXPECT_EQ(OutJson(std::vector<OutJson>(echoed.begin() + 6, echoed.end())), moved);
  body.update({{"prompt", "h\u00e9llo"}, {"stream", true}});
  for (const OutJson& chunk : events("/v1/completions", body)) {
    const OutJson& logprobs = chunk["choices"][0]["logprobs"];
    if (!logprobs.is_null())
      pieces.insert(pieces.end(), logprobs["text_offset"].begin(), logprobs["text_offset"].end());
  }
  EXPECT_EQ(pieces, whole["text_offset"]);
}

TEST_F(Protocol, PromptsInEveryForm) {
  const std::string of_text = complete("abc", {{"max_tokens", 6}})["choices"][0]["text"];
  const OutJson ids = {97, 98, 99};
  EXPECT_EQ(complete("", {{"prompt", ids}, {"max_tokens", 6}})["choices"][0]["text"], of_text);
  const OutJson many = complete("", {{"prompt", {ids, ids}}, {"max_tokens", 6}, {"n", 2}});
  ASSERT_EQ(many["choices"].size(), 4u);
  for (const OutJson& choice : many["choices"]) EXPECT_EQ(choice["text"], of_text);
  EXPECT_EQ(complete("", {{"prompt", {"x", "abc"}}, {"max_tokens", 6}})["choices"][1]["text"], of_text);
  complete("", {{"prompt", {97, 100000}}}, 400);
  complete("", {{"prompt", OutJson::array()}}, 400);
  complete("", {}, 400);
}

TEST_F(Protocol, ABodyThatIsNoJsonIsNamedByItsByte) {
  auto http = client();
  const auto message = [&](const std::string& body) {
    const auto result = http.Post("/v1/completions", body, "application/json");
    EXPECT_EQ(result->status, 400) << body;
    return OutJson::parse(result->body)["error"]["message"].get<std::string>();
  };
  for (const char* body :
       {"", "{", "{\"prompt\": \"a\",}", "{prompt: 1}", "[1e999]", "{\"prompt\": \"\xFF\"}", "{} x"}) {
    const std::string text = message(body);
    expect_has(text, {"expected a JSON object; got", "at byte "});
    EXPECT_EQ(text.find("json.exception"), text.npos) << text;
  }
  expect_has(message("{\"prompt\": \"a\",}"), {"'}' at byte 16 (line 1, column 16), not a key in double quotes"});
}

TEST_F(Protocol, SmallEndpoints) {
  auto http = client();
  for (const char* path : {"/health", "/ready", "/version", "/v1/models", "/v1/models/tiny", "/metrics"}) {
    EXPECT_EQ(http.Get(path)->status, 200) << path;
  }
  EXPECT_EQ(OutJson::parse(http.Get("/v1/models")->body)["data"][0]["max_model_len"], kLength);
  EXPECT_EQ(http.Get("/v1/models/none")->status, 404);
  EXPECT_EQ(post("/tokenize", {{"prompt", "ab"}})["tokens"], (OutJson{97, 98}));
  EXPECT_EQ(post("/tokenize", {{"prompt", {"ab", "cd"}}}, 400)["error"]["param"], "prompt") << "not only the first";
  EXPECT_EQ(post("/detokenize", {{"tokens", {97, 98}}})["prompt"], "ab");
  const OutJson messages = {
      {{"role", "developer"}, {"content", "Be"}},
      {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}}};
  EXPECT_EQ(post("/apply_template", {{"messages", messages}})["prompt"],
            "<|system|>Be<|end|><|user|>a\nb<|end|><|assistant|>");
  const OutJson refusal = {{"role", "assistant"}, {"content", {{{"type", "refusal"}, {"refusal", "No."}}}}};
  EXPECT_EQ(post("/apply_template", {{"messages", {refusal}}})["prompt"], "<|assistant|>No.<|end|><|assistant|>");
  chat({{"max_tokens", 3}});
  expect_nothing_left();
  expect_has(http.Get("/metrics")->body,
             {"hotswap:num_requests_running{model_name=\"tiny\"} 0", "hotswap:generation_tokens_total", "_bucket{"});
}

TEST_F(Protocol, ThePageRunsItsOwnScriptOnly) {
  start({.api_keys = {"key"}});
  auto http = client();
  const auto page = http.Get("/");
  ASSERT_EQ(page->status, 200);
  const std::string policy = page->get_header_value("Content-Security-Policy");
  expect_has(policy, {"default-src 'none'", "script-src 'nonce-"});
  const size_t at = policy.find("nonce-") + 6;
  expect_has(page->body, {cat("<script nonce=\"", policy.substr(at, policy.find('\'', at) - at), "\">")});
  EXPECT_EQ(page->body.find("http://"), std::string::npos);
  EXPECT_EQ(page->body.find("https://"), std::string::npos);
  EXPECT_EQ(page->body.find("innerHTML"), std::string::npos);
}

TEST_F(Protocol, RefusalsNameTheField) {
  const auto param = [&](const OutJson& more, int status = 400) {
    const OutJson error = chat(more, status)["error"];
    EXPECT_FALSE(error["message"].get<std::string>().empty());
    return error["param"].is_string() ? error["param"].get<std::string>() : std::string();
  };
  EXPECT_EQ(param({{"temperature", -1}}), "temperature");
  EXPECT_EQ(param({{"temperature", "hot"}}), "temperature");
  EXPECT_EQ(param({{"n", 0}}), "n");
  EXPECT_EQ(param({{"n", 17}}), "n");
  EXPECT_EQ(param({{"top_logprobs", 3}}), "top_logprobs");
  chat({{"top_logprobs", 0}, {"logprobs", false}, {"max_tokens", 1}});
  EXPECT_EQ(param({{"logit_bias", {{"999", 1}}}}), "logit_bias");
  EXPECT_EQ(param({{"stop", ""}}), "stop");
  EXPECT_EQ(param({{"audio", OutJson::object()}}), "audio");
  EXPECT_EQ(param({{"functions", OutJson::array()}}), "functions");
  EXPECT_EQ(param({{"model", "gpt"}}, 404), "model");
  EXPECT_EQ(param({{"response_format", {{"type", "xml"}}}}), "response_format");
  EXPECT_EQ(param({{"response_format", {{"type", "json_schema"}}}}), "response_format");
  const OutJson tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  for (const char* field : {"structured_outputs", "guided_json", "guided_choice", "grammar", "json_schema"}) {
    EXPECT_EQ(param({{field, {{"type", "none"}}}}), field) << "a constraint by another server's name";
  }
  EXPECT_EQ(param({{"structural_tag", {{"type", "object"}}}}, 501), "structural_tag");
  EXPECT_EQ(param({{"repetition_penalty", 0}}), "repetition_penalty");
  EXPECT_EQ(param({{"documents", "d"}}), "documents");
  EXPECT_EQ(param({{"chat_template_kwargs", {{"messages", OutJson::array()}}}}), "chat_template_kwargs");
  EXPECT_EQ(param({{"tools", {tool}}}), "tools") << "its template has no word of tools";
  EXPECT_EQ(param({{"tools", {tool, tool}}}), "tools");
  EXPECT_EQ(param({{"tools", {tool}}, {"tool_choice", "some"}}), "tool_choice");
  EXPECT_EQ(param({{"tool_choice", "required"}}), "tool_choice");
  EXPECT_EQ(param({{"tools", "f"}}), "tools");
  EXPECT_EQ(param({{"messages", OutJson::array()}}), "messages");
  EXPECT_EQ(param({{"messages", {{{"role", "refused"}, {"content", "x"}}}}}), "messages");
  EXPECT_EQ(param({{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}}), "messages[0].content");
  chat({{"tools", {tool}}, {"tool_choice", "none"}, {"max_tokens", 1}});
  chat({{"response_format", {{"type", "text"}}}, {"max_tokens", 1}, {"user", "me"}, {"no_such_field", 1}});
  EXPECT_EQ(post("/v1/embeddings", {{"input", "a"}}, 501)["error"]["type"], "not_implemented_error");
}

// A NUL in what came does not hide the rest of the message.
TEST_F(Protocol, RefusalsAreWholeWhateverTheyQuote) {
  const std::string nul("a\0b", 3);
  expect_has(chat({{"model", nul}}, 404)["error"]["message"], {"'a?b' does not exist; there are: tiny"});
  expect_has(OutJson::parse(client().Get("/a%00b")->body)["error"]["message"], {"got /a?b; send chats to"});
  expect_has(chat({{"chat_template_kwargs", {{nul, 1}}}, {"tool_choice", nul}}, 400)["error"]["message"], {"send one"});
}

// History that another server would answer with 500.
TEST_F(Protocol, ArgumentsOfToolCallsThatAreNoJsonStayText) {
  const auto prompt = [&](const std::string& arguments) {
    const OutJson call = {{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
    const OutJson messages = {{{"role", "user"}, {"content", "q"}},
                              {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}}};
    return post("/apply_template", {{"messages", messages}})["prompt"].get<std::string>();
  };
  expect_has(prompt("{\"a\": 1}"), {"<|assistant|>{\"a\": 1}"});
  expect_has(prompt("{\"a\": "), {"<|assistant|>\"{\\\"a\\\": \""});
  // An object that a copy of it, level by level, would overflow the stack for.
  const std::string deep = "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  expect_has(prompt(deep), {"<|assistant|>\"{\\\"a\\\":[["});
}

TEST_F(Protocol, StrictFieldsAreRefused) {
  start({.strict_fields = true});
  EXPECT_EQ(chat({{"no_such_field", 1}}, 400)["error"]["param"], "no_such_field");
  chat({{"max_tokens", 1}, {"metadata", OutJson::object()}});
}

}  // namespace
}  // namespace hotswap
