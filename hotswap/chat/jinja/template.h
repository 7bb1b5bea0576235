// A Jinja template as Hugging Face's transformers renders chat templates: jinja2's ImmutableSandboxedEnvironment with
// trim_blocks, lstrip_blocks, loop controls, {% generation %}, raise_exception(message) and strftime_now(format), and a
// tojson that escapes nothing for HTML.
//
//   const jinja::Template compiled("{% for m in messages %}{{ m.content }}{% endfor %}");
//   const jinja::Rendered rendered = compiled.render({{"messages", messages}});
//
// A template is untrusted: it sees its context alone, changes nothing, and ends within Limits, in a text or in a
// TemplateError. Compile once; render() may run on many threads.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "hotswap/chat/jinja/limits.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {

struct Tree;
struct Rendered;

class Template {
 public:
  // Throws TemplateError for a template that does not parse; it must be UTF-8.
  explicit Template(std::string_view source, const Limits& limits = {});

  // context: an object whose members are the template's variables.
  Rendered render(const nlohmann::ordered_json& context) const;

 private:
  std::shared_ptr<const Tree> tree_;
  Limits limits_;
};

}  // namespace hotswap::jinja
