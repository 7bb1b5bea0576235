#include <cstdio>
#include <iostream>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {
namespace {

struct TemplateFlags {
  ModelFlags model;
  std::string template_file, messages = "-", tools, context, name, continue_field;
  bool add_generation_prompt = false, ids = false;
};

ChatTemplate chosen_template(const TemplateFlags& flags) {
  if (flags.template_file.empty()) return load_chat_template(flags.model);
  return ChatTemplate({{"default", read_file(flags.template_file)}}, nlohmann::ordered_json::object());
}

void chat_template_verb(const TemplateFlags& flags) {
  ChatRequest request = read_chat(flags.messages);
  request.add_generation_prompt = flags.add_generation_prompt;
  if (!flags.tools.empty()) request.tools = Json::read(flags.tools).raw();
  if (!flags.context.empty()) request.variables = Json::read(flags.context).raw();
  if (!flags.name.empty()) request.name = flags.name;
  if (!flags.continue_field.empty()) request.continue_final_message = flags.continue_field;
  const ChatTemplate chat = chosen_template(flags);
  if (flags.ids) {
    std::cout << join(chat.ids(load_tokenizer(flags.model), request), " ") << '\n';
  } else {
    std::cout << chat.render(request);  // the text and nothing else, no newline behind it
  }
  std::cout.flush();
}

}  // namespace

void add_chat_template(CLI::App& app) {
  auto* verb = app.add_subcommand("chat-template", "Messages to the text that a model's chat template makes of them");
  auto flags = std::make_shared<TemplateFlags>();
  auto* source = verb->add_option_group("source");
  source->add_option("--model,model", flags->model.model, "Folder of the model, a .gguf file, or org/name on the Hub")
      ->type_name("DIR|ID");
  source->add_option("--template", flags->template_file, "A Jinja file instead of a model's template")
      ->type_name("FILE");
  source->require_option(1);
  verb->add_option("--revision", flags->model.revision, "Branch, tag or commit of a model of the Hub")
      ->capture_default_str();
  verb->add_option("--gguf-file", flags->model.gguf_file, "This GGUF file of the folder")->type_name("FILE");
  verb->add_option("--messages", flags->messages, "A JSON file: messages, or {messages, tools, documents}; - is stdin")
      ->type_name("FILE")
      ->capture_default_str();
  verb->add_option("--tools", flags->tools, "A JSON file: a list of tool schemas")->type_name("FILE");
  verb->add_option("--context", flags->context, "A JSON file: further variables of the template")->type_name("FILE");
  verb->add_option("--name", flags->name, "Of a model's several templates; default: tool_use with tools, else default");
  verb->add_option("--continue-final-message", flags->continue_field,
                   "End inside the last message, behind this field of it: content")
      ->type_name("FIELD");
  verb->add_flag("--add-generation-prompt", flags->add_generation_prompt, "Begin the assistant's turn");
  verb->add_flag("--ids", flags->ids, "Print token ids instead of the text; wants --model");
  verb->callback([flags] { chat_template_verb(*flags); });
}

}  // namespace hotswap
