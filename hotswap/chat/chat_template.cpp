#include "hotswap/chat/chat_template.h"

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/chat/chat_template_sources.h"
#include "hotswap/chat/jinja/interpreter.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using OutJson = nlohmann::ordered_json;

constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

// The special tokens of a folder as the variables that transformers gives to templates.
void read_special_tokens(const Json& config, OutJson& variables) {
  for (const char* name : kSpecialTokens) {
    const auto token = config.find(name);
    if (!token) continue;
    variables[name] = token->is_object() ? token->at<std::string>("content") : token->as<std::string>();
  }
}

void check(const ChatRequest& request) {
  const auto list_of_objects = [](const OutJson& json) {
    return json.is_array() &&
           std::all_of(json.begin(), json.end(), [](const OutJson& item) { return item.is_object(); });
  };
  if (!list_of_objects(request.messages)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "messages as a list of objects",
                 .got = request.messages.dump(-1, ' ', false, OutJson::error_handler_t::replace).substr(0, 80),
                 .next = R"(give [{"role": "user", "content": "..."}])"});
  }
  for (const auto& [what, json] : {std::pair{"tools", &request.tools}, std::pair{"documents", &request.documents}}) {
    if (json->is_null() || list_of_objects(*json)) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat(what, " as a list of objects, or null"),
                 .got = json->dump(-1, ' ', false, OutJson::error_handler_t::replace).substr(0, 80),
                 .next = cat("give ", what, " as a list")});
  }
  if (request.continue_final_message && request.add_generation_prompt) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "either continue_final_message or add_generation_prompt",
                 .got = "both",
                 .next = "leave one out: the one continues a message, the other begins one"});
  }
}

// Puts the tag behind the text that is to be continued; returns that text.
std::string tag_final_message(OutJson& messages, const std::string& field, const std::string& source) {
  const auto refuse = [&](const std::string& got) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a final message whose \"", field, "\" the template shows, to continue it"),
                 .got = got,
                 .next = "leave continue_final_message out, or end with a message of that field"});
  };
  if (messages.empty()) refuse("no messages");
  OutJson& last = messages.back();
  if (!last.contains(field) || last[field].is_null()) refuse(cat("a final message without \"", field, "\""));
  if (source.find(field) == std::string::npos) refuse("a template that does not read this field");
  OutJson& value = last[field];
  OutJson* text = nullptr;
  if (value.is_string()) text = &value;
  if (value.is_array()) {
    for (auto& part : value) {
      if (part.is_object() && part.contains("text")) text = &part["text"];
    }
  }
  if (text == nullptr || !text->is_string()) refuse("no text in the final message");
  const auto before = text->get<std::string>();
  *text = before + std::string(kContinueTag);
  return before;
}

std::string_view stripped(std::string_view text) { return jinja::strip_left(jinja::strip_right(text)); }

// The text up to the last tag; where the template trimmed the tag's own blank, without the white space before it too.
void cut_at_tag(std::string& text, std::string_view message) {
  const std::string_view tag = stripped(kContinueTag);
  const size_t at = text.rfind(tag);
  if (at == std::string::npos || text.find(stripped(message)) == std::string::npos) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a rendered chat that contains the final message verbatim, for continue_final_message",
                 .got = "a text without it",
                 .next = "leave continue_final_message out for this template"});
  }
  const bool blank_kept = text.compare(at, kContinueTag.size(), kContinueTag) == 0;
  text.resize(at);
  if (!blank_kept) text.resize(jinja::strip_right(text).size());
}

}  // namespace

ChatTemplate::ChatTemplate(std::map<std::string, std::string> templates, OutJson variables)
    : variables_(std::move(variables)) {
  for (auto& [name, source] : templates) templates_.emplace(name, Named{source, jinja::Template(source)});
}

std::optional<ChatTemplate> ChatTemplate::find_in_folder(const fs::path& folder) {
  std::map<std::string, std::string> templates = chat_template_sources(folder);
  OutJson variables = OutJson::object();
  for (const char* file : {"special_tokens_map.json", "tokenizer_config.json"}) {
    if (fs::is_regular_file(folder / file)) read_special_tokens(Json::read(folder / file), variables);
  }
  if (templates.empty()) return std::nullopt;
  return ChatTemplate(std::move(templates), std::move(variables));
}

ChatTemplate ChatTemplate::required(std::optional<ChatTemplate> found, const fs::path& name) {
  if (found) return *std::move(found);
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("a chat template of ", name.string()),
               .got = "neither chat_template.jinja, nor chat_template in tokenizer_config.json, nor "
                      "tokenizer.chat_template in a GGUF file",
               .next = "use an instruct (chat) model, or give a template of your own"});
}

ChatTemplate ChatTemplate::from_folder(const fs::path& folder) { return required(find_in_folder(folder), folder); }

const ChatTemplate::Named& ChatTemplate::choose(const ChatRequest& request) const {
  const auto named = [&](const std::string& name) { return templates_.find(name); };
  auto found = templates_.end();
  if (request.name) {
    found = named(*request.name);
  } else {
    if (!request.tools.is_null()) found = named("tool_use");
    if (found == templates_.end()) found = named("default");
  }
  if (found != templates_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, _] : templates_) names.push_back(name);
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = request.name ? cat("a chat template called '", *request.name, "'")
                                      : "a chat template called 'default'",
               .got = cat("templates ", join(names)),
               .next = "name one of them"});
}

RenderedChat ChatTemplate::render_with_spans(const ChatRequest& request) const {
  check(request);
  const Named& chosen = choose(request);
  OutJson context = {{"messages", request.messages},
                     {"tools", request.tools},
                     {"documents", request.documents},
                     {"add_generation_prompt", request.add_generation_prompt}};
  if (!variables_.is_null()) context.update(variables_);
  if (!request.variables.is_null()) context.update(request.variables);
  std::string continued;
  if (request.continue_final_message) {
    continued = tag_final_message(context["messages"], *request.continue_final_message, chosen.source);
  }
  jinja::Rendered rendered = chosen.compiled.render(context);
  if (request.continue_final_message) cut_at_tag(rendered.text, continued);
  RenderedChat out{std::move(rendered.text), {}};
  for (const auto& [begin, end] : rendered.generations) {
    if (begin < out.text.size()) out.assistant.emplace_back(begin, std::min(end, out.text.size()));
  }
  return out;
}

bool ChatTemplate::mentions(std::string_view text) const {
  return std::any_of(templates_.begin(), templates_.end(),
                     [&](const auto& named) { return named.second.source.find(text) != std::string::npos; });
}

std::vector<int64_t> ChatTemplate::ids(const Tokenizer& tokenizer, const ChatRequest& request) const {
  return tokenizer.ids(render(request), /*add_special_tokens=*/false);
}

}  // namespace hotswap
