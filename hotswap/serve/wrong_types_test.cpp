// Each value of a request replaced by ones of other types: it is answered or refused, and never the fault of the
// server. A refusal states what was expected, what came, and what to do next.
#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using test_support::OutJson;

class WrongTypes : public test_support::Served {
 protected:
  // Of each value in `json`, but of `json` itself.
  static void add_pointers(const OutJson& json, const OutJson::json_pointer& at,
                           std::vector<OutJson::json_pointer>& out) {
    if (!at.empty()) out.push_back(at);
    if (json.is_object()) {
      for (const auto& [name, value] : json.items()) add_pointers(value, at / name, out);
    } else if (json.is_array()) {
      for (size_t i = 0; i < json.size(); ++i) add_pointers(json[i], at / i, out);
    }
  }

  // In three parts, of which none is empty.
  static bool is_whole(const OutJson& error) {
    const auto message = error["message"].get<std::string>();
    if (message.starts_with("The model '") || message.starts_with("This model's maximum")) return true;  // OpenAI's own
    const size_t got = message.find("; got "), next = got == std::string::npos ? got : message.find("; ", got + 6);
    return message.starts_with("expected ") && got > 9 && next != std::string::npos && next > got + 6 &&
           next + 2 < message.size() && error.contains("type") && error.contains("param") && error.contains("code");
  }

  void expect_no_fault(const std::string& path, const OutJson& body) const {
    static const OutJson kValues =
        OutJson::parse(R"([null, true, -1, 0.5, 9223372036854775807, "", "a", [], {}, [null], {"a": [1]}])");
    std::vector<OutJson::json_pointer> pointers;
    add_pointers(body, OutJson::json_pointer(), pointers);
    auto http = client();
    http.set_keep_alive(true);
    for (const auto& pointer : pointers) {
      for (const OutJson& value : kValues) {
        OutJson changed = body;
        changed[pointer] = value;
        const auto result = http.Post(path, text_of(changed), "application/json");
        ASSERT_TRUE(result) << path << " " << text_of(changed);
        EXPECT_TRUE(result->status < 500 || result->status == 501) << path << " " << text_of(changed) << "\n"
                                                                   << result->body;
        if (result->status == 200) continue;
        EXPECT_TRUE(is_whole(OutJson::parse(result->body)["error"])) << path << " " << text_of(changed) << "\n"
                                                                     << result->body;
      }
    }
    expect_nothing_left();
  }
};

TEST_F(WrongTypes, OfAChat) {
  expect_no_fault("/v1/chat/completions",
                  OutJson::parse(R"({"model": "tiny", "max_tokens": 1, "n": 1, "stop": ["a"], "logit_bias": {"5": 1},
    "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 1, "chat_template_kwargs": {"a": 1}, "documents": [{"a": "b"}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
      {"role": "assistant", "content": null, "reasoning": "r", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "c", "content": "done"}]})"));
}

TEST_F(WrongTypes, OfTools) {
  start({}, ChatTemplate({{"default", "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"}},
                         OutJson::object()));
  expect_no_fault("/v1/chat/completions",
                  OutJson::parse(R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}],
    "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false,
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object",
      "properties": {"a": {"type": "string", "pattern": "a+", "maxLength": 3}, "b": {"anyOf": [{"$ref": "#/$defs/x"}, {"minimum": 1}]}},
      "required": ["a"], "$defs": {"x": {"enum": [1]}}}}}]})"));
}

TEST_F(WrongTypes, OfAForm) {
  expect_no_fault("/v1/chat/completions",
                  OutJson::parse(R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"type": "array", "items": {"const": 1}}}}})"));
  expect_no_fault("/v1/chat/completions",
                  OutJson::parse(R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}],
    "structured_outputs": {"choice": ["a", "b"]}})"));
}

TEST_F(WrongTypes, OfACompletion) {
  expect_no_fault(
      "/v1/completions",
      OutJson::parse(
          R"({"prompt": ["ab", "c"], "max_tokens": 1, "echo": true, "logprobs": 1, "best_of": 1, "stop_token_ids": [1],
    "seed": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 2, "min_p": 0.1, "user": "u"})"));
  expect_no_fault("/tokenize",
                  OutJson::parse(R"({"messages": [{"role": "user", "content": "a"}], "add_special_tokens": true})"));
  expect_no_fault("/detokenize", OutJson::parse(R"({"tokens": [1, 2]})"));
}

TEST_F(WrongTypes, OfWhatIsNoRequest) {
  for (const char* body : {"", "[]", "5", "{", "{} x", R"({"prompt": "a", "prompt": "b"})", R"({"prompt": 1e999})",
                           R"({"prompt": 99999999999999999999})", "{\"prompt\": \"\xff\"}"}) {
    for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"}) {
      const auto result = client().Post(path, body, "application/json");
      ASSERT_TRUE(result) << path << body;
      EXPECT_EQ(result->status, 400) << path << " " << body;
      EXPECT_TRUE(is_whole(OutJson::parse(result->body)["error"])) << path << " " << body << "\n" << result->body;
    }
  }
  const auto refused = [&](const httplib::Result& result, int status) {
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, status) << result->body;
    EXPECT_TRUE(is_whole(OutJson::parse(result->body)["error"])) << result->body;
  };
  refused(client().Get("/v2/models"), 404);
  refused(client().Post("/v1/chat/completions", "{}", "text/plain"), 415);
  refused(client().Get("/v1/models", httplib::Headers{{"Host", "a.example"}}), 403);
  refused(client().Get("/v1/models", httplib::Headers{{"Origin", "http://a.example"}}), 403);
  for (const char* path : {"/v1/embeddings", "/v1/rerank", "/rerank"}) {
    refused(client().Post(path, "{}", "application/json"), 501);
  }
  const auto wrong_method = client().Get("/v1/chat/completions");
  refused(wrong_method, 405);
  EXPECT_EQ(wrong_method->get_header_value("Allow"), "POST");
}

// Of what a response may include, the logprobs of its text are the one thing that this server would have to write.
TEST_F(WrongTypes, OfWhatAResponseIncludes) {
  const OutJson body = {{"input", "Hi"}, {"max_output_tokens", 1}, {"include", {"reasoning.encrypted_content"}}};
  EXPECT_EQ(post("/v1/responses", body)["usage"]["input_tokens_details"]["cache_write_tokens"], 0);
  OutJson logprobs = body;
  logprobs["include"].push_back("message.output_text.logprobs");
  EXPECT_EQ(post("/v1/responses", logprobs, 400)["error"]["param"], "include");
}

// Each was taken for something else once.
TEST_F(WrongTypes, AreNamedAsTheyCame) {
  const auto message = [&](const char* path, const OutJson& body) {
    return post(path, body, 400)["error"]["message"].get<std::string>();
  };
  test_support::expect_has(message("/v1/completions", {{"prompt", 5}}), {"prompt as a text", "; got 5; "});
  test_support::expect_has(message("/v1/responses", {{"input", {5}}}), {"items of type message", "; got 5; "});
  test_support::expect_has(message("/detokenize", {{"tokens", {65, 260}}}), {"token ids from 0 to 259; got 260; "});
  test_support::expect_has(
      message("/tokenize", {{"prompt", "a"}, {"messages", {{{"role", "user"}, {"content", "b"}}}}}),
      {"prompt or messages; got both; "});
}

TEST_F(WrongTypes, OfAResponse) {
  expect_no_fault("/v1/responses",
                  OutJson::parse(R"({"max_output_tokens": 1, "instructions": "s", "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}, "tools": [], "metadata": {"a": "b"},
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "x"}]})"));
}

}  // namespace
}  // namespace hotswap
