#include "hotswap/cli/flags/unknown_word.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/base/nearest_name.h"

namespace hotswap {
namespace {

bool is_flag(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

std::string line_of(const CLI::App& app) {
  return app.get_parent() ? cat(line_of(*app.get_parent()), " ", app.get_name()) : app.get_name();
}

// Those of the option groups, too, which CLI11 keeps as verbs without a name.
void add_flags(const CLI::App& app, std::vector<std::string>& flags) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // no person's: help does not list it either
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  for (const CLI::App* group : app.get_subcommands([](const CLI::App* sub) { return sub->get_name().empty(); }))
    add_flags(*group, flags);
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); })) {
    names.push_back(verb->get_name());
    names.insert(names.end(), verb->get_aliases().begin(), verb->get_aliases().end());
  }
  return names;
}

std::string message(const CLI::App& app, const char* what, const std::string& word,
                    const std::vector<std::string>& known) {
  const auto nearest = nearest_name(word, known);
  const std::string next =
      nearest ? cat("did you mean ", *nearest, "?") : cat("`", line_of(app), " --help` lists what it takes");
  return cat("expected ", what, " of `", line_of(app), "`; got ", word, "; ", next);
}

std::string flag_message(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  for (const CLI::App* verb : app.get_subcommands()) {  // that were parsed
    std::vector<std::string> flags;
    add_flags(*verb, flags);
    if (std::find(flags.begin(), flags.end(), name) == flags.end()) continue;
    return cat("expected ", name, " after `", line_of(*verb), "`, whose flag it is; got it before");
  }
  std::vector<std::string> flags;
  add_flags(app, flags);
  return message(app, "a flag", name, flags);
}

}  // namespace

std::optional<std::string> unknown_word(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  const std::vector<std::string> verbs = verbs_of(app);
  const bool lacks_verb = !verbs.empty() && app.get_subcommands().empty();
  if (lacks_verb && !words.empty() && !is_flag(words[0])) return message(app, "a verb", words[0], verbs);
  const auto flag = std::find_if(words.begin(), words.end(), is_flag);
  if (flag != words.end() && *flag != "--") return flag_message(app, *flag);
  for (const CLI::App* verb : app.get_subcommands()) {
    if (auto text = unknown_word(*verb)) return text;
  }
  if (words.empty() || words[0] == "--") return std::nullopt;
  return cat("expected no further word for `", line_of(app), "`; got ", words[0], "; quote a text of several words; `",
             line_of(app), " --help` lists what it takes");
}

}  // namespace hotswap
