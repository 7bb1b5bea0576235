#include "hotswap/serve/generation_request.h"

#include <charconv>
#include <random>

#include "hotswap/grammar/gbnf.h"
#include "hotswap/models/trunk_input.h"
#include "hotswap/serve/chat_messages.h"
#include "hotswap/serve/message_part.h"

namespace hotswap::serve {
namespace {

using OutJson = nlohmann::ordered_json;

constexpr int64_t kMaxAnswers = 16, kMaxPrompts = 256, kMaxStops = 16, kMaxStopBytes = 256, kMaxBiases = 1024;
constexpr int64_t kMaxTopLogprobs = 20, kMaxOldLogprobs = 5;
constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's

std::vector<std::string> read_stop(RequestBody& body) {
  const auto stop = body.json("stop");
  if (!stop) return {};
  auto texts = body.guarded("stop", [&] {
    return stop->is_string() ? std::vector<std::string>{stop->as<std::string>()} : stop->as<std::vector<std::string>>();
  });
  if (texts.size() > kMaxStops) {
    bad_request({cat("at most ", kMaxStops, " texts in stop"), cat(texts.size()), "send fewer", "stop"});
  }
  for (const std::string& text : texts) {
    if (!text.empty() && text.size() <= kMaxStopBytes) continue;
    bad_request({cat("texts of 1 to ", kMaxStopBytes, " bytes in stop"), cat("one of ", text.size()),
                 text.empty() ? "leave stop out where nothing is to end the text" : "shorten it", "stop"});
  }
  return texts;
}

std::vector<std::pair<int64_t, double>> read_logit_bias(RequestBody& body, int64_t vocab) {
  const auto bias = body.json("logit_bias");
  std::vector<std::pair<int64_t, double>> out;
  if (!bias) return out;
  body.guarded("logit_bias", [&] {
    for (const auto& [key, value] : bias->items()) {
      int64_t id = -1;
      const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), id);
      const auto number = value.as<double>();
      const bool is_id = code == std::errc() && end == key.data() + key.size() && id >= 0 && id < vocab;
      if (!is_id || !(number >= -100 && number <= 100)) {
        bad_request({cat("logit_bias as {\"id\": -100..100} with ids below ", vocab),
                     cat(came(OutJson(key)), ": ", came(value.raw())), "take ids from /tokenize", "logit_bias"});
      }
      out.emplace_back(id, number);
    }
  });
  if (out.size() > kMaxBiases) {
    bad_request({cat("at most ", kMaxBiases, " ids in logit_bias"), cat(out.size()), "send fewer", "logit_bias"});
  }
  return out;
}

// What a request leaves open is as generation_config.json has it.
RowSampling read_sampling(RequestBody& body, const ServedModel& model) {
  const GenerationConfig& defaults = model.model->generation_config();
  RowSampling s{
      .temperature = body.number("temperature", 0, 100).value_or(defaults.temperature.value_or(1)),
      .top_k = body.integer("top_k", -1, INT64_MAX).value_or(defaults.top_k.value_or(0)),
      .top_p = body.number("top_p", 0, 1).value_or(defaults.top_p.value_or(1)),
      .min_p = body.number("min_p", 0, 1).value_or(defaults.min_p.value_or(0)),
      .repetition_penalty = body.number("repetition_penalty", 0, 100).value_or(defaults.repetition_penalty.value_or(1)),
      .presence_penalty = body.number("presence_penalty", -2, 2).value_or(0),
      .frequency_penalty = body.number("frequency_penalty", -2, 2).value_or(0)};
  if (s.top_k < 0) s.top_k = 0;  // -1 is vLLM's "off"
  if (s.top_p == 0) bad_request({"a top_p above 0", "0", "send temperature 0 for the most probable tokens", "top_p"});
  if (s.repetition_penalty == 0) {
    bad_request({"a repetition_penalty above 0", "0", "send 1 for no penalty", "repetition_penalty"});
  }
  const auto seed = body.get<int64_t>("seed");
  s.seed = seed ? static_cast<uint64_t>(*seed) : std::random_device{}() | uint64_t{std::random_device{}()} << 32;
  s.logit_bias = read_logit_bias(body, model.vocab());
  s.min_new_tokens = body.integer("min_tokens", 0, INT64_MAX).value_or(0);
  return s;
}

void read_ends(RequestBody& body, const ServedModel& model, GenerationRequest& request) {
  const auto ids = body.get<std::vector<int64_t>>("stop_token_ids");
  if (!body.flag("ignore_eos")) request.stop.eos = model.ends();
  if (ids) request.stop.eos.insert(request.stop.eos.end(), ids->begin(), ids->end());
  request.sampling.ends = request.stop.eos;
  request.text = {.stop = read_stop(body),
                  .include_stop = body.flag("include_stop_str_in_output"),
                  .skip_special_tokens = body.flag("skip_special_tokens", true)};
}

// An answer is never generated without a constraint that its request names.
void require_grammars(const ServedModel& model, const std::string& field) {
  const std::string missing = model.grammars ? model.grammars->missing() : "a model that is not served yet";
  if (missing.empty()) return;
  throw ApiError(501,
                 {"xgrammar for structured output", cat("none: ", missing),
                  cat("leave ", field, " out, or install it where this server runs"), field, "unsupported_parameter"});
}

// Whether the prompt leaves the model in its thoughts.
bool ends_in_thoughts(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(" \n");
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(kThinkOpen);
}

// Which calls are read back, and the grammar of those that are demanded.
void add_tools(const ToolRequest& tools, const ServedModel& model, GenerationRequest& request) {
  if (tools.choice == ToolChoice::kNone) return;
  request.message.format = tools.format;
  request.message.tools = {tools.names.begin(), tools.names.end()};
  request.message.typed = typed_parameters(tools.tools);
  if (!marker_tokens(model.tokenizer, *tools.format).empty()) request.text.skip_special_tokens = false;
  if (tools.choice == ToolChoice::kRequired) {
    request.rules = tool_rules(tools);  // an answer has no text of its own then
    require_grammars(model, "tool_choice");
  } else if (request.rules) {  // calls, or a text of the form that the request names
    request.rules->ebnf = grammar::either_gbnf(request.rules->ebnf, tool_rules(tools).ebnf);
  }
}

void read_common(RequestBody& body, const ServedModel& model, GenerationRequest& request) {
  request.model = named_model(body, model);
  request.n = body.integer("n", 1, kMaxAnswers).value_or(1);
  request.sampling = read_sampling(body, model);
  read_ends(body, model, request);
  request.stream = body.flag("stream");
  if (const auto options = body.json("stream_options")) {
    if (!options->is_object()) {
      bad_request({"stream_options as an object", came(options), "send {\"include_usage\": true}", "stream_options"});
    }
    request.include_usage = body.guarded("stream_options", [&] { return options->get<bool>("include_usage", false); });
  }
  request.cache_salt = body.get<std::string>("cache_salt").value_or("");
  request.rules = read_answer_rules(body);
  if (request.rules) require_grammars(model, request.rules->field);
  body.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "verbosity", "prediction",
               "prompt_cache_key"});
}

// After all fields were read.
void check_lengths(GenerationRequest& request, const ServedModel& model) {
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(request.prompts[i].size());
    if (length == 0) {
      bad_request({"a prompt of at least one token", "none", "send a text", request.chat ? "messages" : "prompt"});
    }
    const int64_t added = request.max_new_tokens.value_or(1);
    if (added > model.max_model_len - length) {
      throw ApiError(400,
                     cat("This model's maximum context length is ", model.max_model_len, " tokens; got ", length,
                         " of the prompt and ", added, " new ones; shorten the prompt or lower max_tokens"),
                     request.chat ? "messages" : "prompt", "context_length_exceeded");
    }
  }
  for (const int64_t id : request.stop.eos) {
    if (id < 0)
      bad_request({"ids of 0 or more in stop_token_ids", cat(id), "take ids from /tokenize", "stop_token_ids"});
  }
}

}  // namespace

std::vector<int64_t> checked_ids(const Json& list, const std::string& field, int64_t vocab) {
  auto ids = list.as<std::vector<int64_t>>();
  for (const int64_t id : ids) {
    if (id >= 0 && id < vocab) continue;
    bad_request({cat("token ids from 0 to ", vocab - 1), cat(id), "take ids from this model's own /tokenize", field});
  }
  return ids;
}

int64_t GenerationRequest::new_tokens(size_t prompt, int64_t max_model_len) const {
  return max_new_tokens.value_or(max_model_len - static_cast<int64_t>(prompts[prompt].size()));
}

ServedModel::Named named_model(RequestBody& body, const ServedModel& model) {
  const std::string name = body.get<std::string>("model").value_or(model.names.front());
  if (auto found = model.find(name)) return *std::move(found);
  throw ApiError(404, cat("The model '", name, "' does not exist; there are: ", join(model.all_names())), "model",
                 "model_not_found");
}

RenderedRequest render_chat(RequestBody& body, const ServedModel& model) {
  if (!model.chat_template) {
    bad_request({"a model with a chat template", "one without", "use /v1/completions", "messages"});
  }
  ChatFields fields = read_chat_fields(body, *model.chat_template);
  std::string text = body.guarded("messages", [&] { return model.chat_template->render(fields.request); });
  return {std::move(text), std::move(fields.tools)};
}

std::vector<std::vector<int64_t>> read_prompts(RequestBody& body, const std::string& field, const ServedModel& model) {
  const auto given = body.json(field);
  if (!given || !(given->is_string() || given->is_array())) {
    bad_request({cat(field, " as a text, a list of texts, ids or lists of ids"), came(given),
                 cat("send {\"", field, "\": \"a text\"}"), field});
  }
  return body.guarded(field, [&]() -> std::vector<std::vector<int64_t>> {
    const bool special = body.flag("add_special_tokens", true);
    const auto ids_of = [&](const Json& one) {
      return one.is_string() ? model.tokenizer.ids(one.as<std::string>(), special)
                             : checked_ids(one, field, model.vocab());
    };
    const bool is_list = given->is_array() && !given->raw().empty();
    if (given->is_string() || (is_list && given->raw().front().is_number())) return {ids_of(*given)};
    const auto elements = is_list ? given->elements() : std::vector<Json>();
    if (elements.empty() || elements.size() > kMaxPrompts) {
      bad_request({cat("1 to ", kMaxPrompts, " prompts"), cat(elements.size()),
                   elements.empty() ? "send at least one" : "send several requests", field});
    }
    std::vector<std::vector<int64_t>> prompts;
    for (const Json& element : elements) prompts.push_back(ids_of(element));
    return prompts;
  });
}

GenerationRequest read_chat_request(const std::string& text, const ServedModel& model) {
  RequestBody body(text);
  GenerationRequest request;
  const auto newer = body.integer("max_completion_tokens", 1, INT64_MAX),
             older = body.integer("max_tokens", 1, INT64_MAX);
  request.max_new_tokens = newer ? newer : older;
  const auto modalities = body.get<std::vector<std::string>>("modalities");
  if (modalities && *modalities != std::vector<std::string>{"text"}) {
    bad_request({"modalities [\"text\"]", cat("[", join(*modalities), "]"),
                 "leave it out: this server writes text only", "modalities", "unsupported_parameter"});
  }
  body.refuse({"audio", "web_search_options", "functions", "function_call"});
  read_common(body, model, request);
  const bool logprobs = body.flag("logprobs");
  const auto top = body.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !logprobs) {
    bad_request({"logprobs true beside top_logprobs", "no logprobs", "send \"logprobs\": true", "top_logprobs"});
  }
  if (logprobs) request.sampling.logprobs = std::min(top.value_or(0), model.vocab());
  request.continues = body.flag("continue_final_message");
  const RenderedRequest rendered = render_chat(body, model);
  request.prompts = {model.tokenizer.ids(rendered.text, /*add_special_tokens=*/false)};
  if (!request.continues) {
    request.message = {.thinking = ends_in_thoughts(rendered.text),
                       .thoughts = model.chat_template->mentions(kThinkClose)};
    const ToolFormat& format = tool_format_of(*model.chat_template);
    if (format.style == ToolFormat::Style::kChannels) {  // also where nothing is called
      request.message.format = &format;
      request.text.skip_special_tokens = false;
    }
  }
  add_tools(rendered.tools, model, request);
  check_lengths(request, model);
  request.unknown = body.unknown();
  return request;
}

GenerationRequest read_completion_request(const std::string& text, const ServedModel& model) {
  RequestBody body(text);
  GenerationRequest request;
  request.chat = false;
  request.continues = true;
  const auto max_tokens = body.integer("max_tokens", 0, INT64_MAX);
  request.echo = body.flag("echo");
  request.max_new_tokens = max_tokens.value_or(kDefaultCompletionTokens);
  if (request.max_new_tokens == 0 && !request.echo) {
    bad_request({"max_tokens of 1 or more without echo", "0", "send more, or echo to score the prompt", "max_tokens"});
  }
  if (request.echo && body.flag("stream")) {
    bad_request({"echo without stream", "both", "leave one of them out", "echo", "unsupported_parameter"});
  }
  body.refuse({"suffix"});
  read_common(body, model, request);
  const auto best_of = body.integer("best_of", 1, kMaxAnswers);
  if (best_of && *best_of != request.n) {
    bad_request({"best_of equal to n", cat(*best_of, " and ", request.n),
                 "take n answers with logprobs and choose among them", "best_of", "unsupported_parameter"});
  }
  request.sampling.logprobs = body.integer("logprobs", 0, kMaxOldLogprobs);
  request.prompts = read_prompts(body, "prompt", model);
  if (request.prompts.size() * request.n > kMaxPrompts) {
    bad_request({cat("at most ", kMaxPrompts, " answers of one request"), cat(request.prompts.size() * request.n),
                 "send several requests", "n"});
  }
  check_lengths(request, model);
  request.unknown = body.unknown();
  return request;
}

}  // namespace hotswap::serve
