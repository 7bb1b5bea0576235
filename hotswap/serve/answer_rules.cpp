#include "hotswap/serve/answer_rules.h"

#include "hotswap/grammar/gbnf.h"
#include "hotswap/grammar/regex_rules.h"
#include "hotswap/grammar/schema_rules.h"

namespace hotswap::serve {
namespace {

constexpr size_t kMaxChoices = 1000;

enum class RuleKind { kJson, kRegex, kChoice, kGrammar };

// Fields of vLLM's older versions, of llama.cpp and of SGLang.
constexpr std::pair<const char*, RuleKind> kOtherNames[] = {
    {"guided_json", RuleKind::kJson},     {"guided_regex", RuleKind::kRegex},
    {"guided_choice", RuleKind::kChoice}, {"guided_grammar", RuleKind::kGrammar},
    {"grammar", RuleKind::kGrammar},      {"json_schema", RuleKind::kJson},
    {"regex", RuleKind::kRegex},          {"ebnf", RuleKind::kGrammar}};
constexpr std::pair<const char*, RuleKind> kStructured[] = {{"json", RuleKind::kJson},
                                                            {"regex", RuleKind::kRegex},
                                                            {"choice", RuleKind::kChoice},
                                                            {"grammar", RuleKind::kGrammar}};

using OutJson = nlohmann::ordered_json;

AnswerRules of_schema(const grammar::SchemaJson& schema, const std::string& field) {
  return {.ebnf = grammar::schema_grammar(schema),
          .field = field,
          .schema = std::make_shared<const grammar::SchemaJson>(schema)};
}

AnswerRules of_expr(const grammar::ExprPtr& expr, const std::string& field) {
  const std::string text = grammar::Rules().print(expr);
  if (text.empty()) {
    bad_request({cat(field, " that some text fits"), "one that none does", "correct what contradicts itself", field});
  }
  return {.ebnf = text, .field = field};
}

AnswerRules of_choices(const Json& list, const std::string& field) {
  std::vector<grammar::ExprPtr> choices;
  const auto texts = list.as<std::vector<std::string>>();
  if (texts.empty() || texts.size() > kMaxChoices) {
    bad_request({cat("1 to ", kMaxChoices, " choices"), cat(texts.size()), "send a list of that length", field});
  }
  for (const std::string& text : texts) {
    if (text.empty()) bad_request({"choices that are not empty", "\"\"", "leave the empty one out", field});
    choices.push_back(grammar::literal(text));
  }
  return of_expr(grammar::choice(std::move(choices)), field);
}

AnswerRules of_kind(RuleKind kind, const Json& value, const std::string& field) {
  switch (kind) {
    case RuleKind::kJson: {
      if (!value.is_string()) return of_schema(value.raw(), field);
      const auto text = value.as<std::string>();
      const std::string problem = json_problem(text);
      if (!problem.empty()) {
        bad_request({cat(field, " as a JSON Schema"), problem, "correct the text, or send it as an object", field});
      }
      return of_schema(Json::parse(text, field).raw(), field);
    }
    case RuleKind::kRegex:
      return of_expr(grammar::regex_expr(value.as<std::string>(), {}), field);
    case RuleKind::kChoice:
      return of_choices(value, field);
    case RuleKind::kGrammar:
      break;
  }
  return {.ebnf = grammar::checked_gbnf(value.as<std::string>()), .field = field};
}

std::optional<AnswerRules> of_response_format(RequestBody& body) {
  const std::string field = "response_format";
  const auto format = body.json(field);
  if (!format) return std::nullopt;
  return body.guarded(field, [&]() -> std::optional<AnswerRules> {
    const std::string type = format->is_object() ? format->at<std::string>("type") : "";
    if (type == "text") return std::nullopt;
    if (type == "json_object") {  // with a schema in the form of llama.cpp's clients
      const Json schema = format->find("schema").value_or(Json::parse(R"({"type": "object"})", field));
      return of_schema(schema.raw(), field);
    }
    if (type != "json_schema") {
      bad_request({"response_format of type text, json_object or json_schema", came(format),
                   "send {\"type\": \"json_object\"}, for example", field});
    }
    const Json named = format->child("json_schema");
    const bool complete = named.is_object() && !named.at<std::string>("name").empty() && named.has("schema");
    if (!complete) {
      bad_request({"json_schema {\"name\", \"schema\"}", came(named.raw()), "send both, the name not empty", field});
    }
    named.get<bool>("strict", true);
    return of_schema(named.child("schema").raw(), field);
  });
}

bool is_absent(const Json& value) { return value.is_string() && value.as<std::string>().empty(); }

std::optional<AnswerRules> of_structured_outputs(RequestBody& body) {
  const std::string field = "structured_outputs";
  const auto given = body.json(field);
  if (!given) return std::nullopt;
  return body.guarded(field, [&] {
    if (!given->is_object()) {
      bad_request({"structured_outputs as an object", came(given), "send {\"json\": SCHEMA}, for example", field});
    }
    std::optional<AnswerRules> rules;
    for (const auto& [name, value] : given->items()) {
      if (value.is_null() || (value.is_bool() && !value.as<bool>())) continue;  // as vLLM's client sends what is unset
      const auto known = std::find_if(std::begin(kStructured), std::end(kStructured),
                                      [&, n = name](const auto& k) { return n == k.first; });
      if (known == std::end(kStructured)) {
        bad_request({"json, regex, choice or grammar", came(OutJson(name)), "send one of these", field});
      }
      if (rules) bad_request({"one of json, regex, choice and grammar", "two", "keep one of them", field});
      rules = of_kind(known->second, value, field);
    }
    if (!rules) bad_request({"one of json, regex, choice and grammar", "none", "send one, or leave it out", field});
    return rules;
  });
}

}  // namespace

std::optional<AnswerRules> read_answer_rules(RequestBody& body) {
  std::optional<AnswerRules> rules = of_response_format(body);
  const auto add = [&](std::optional<AnswerRules> more, const std::string& field) {
    if (!more) return;
    if (rules) bad_request({"one constraint", cat(rules->field, " and ", field), "leave one of them out", field});
    rules = std::move(more);
  };
  add(of_structured_outputs(body), "structured_outputs");
  for (const auto& [name, kind] : kOtherNames) {
    const std::string field = name;
    const auto value = body.json(field);
    if (value && !is_absent(*value)) {
      add(body.guarded(field, [&, k = kind] { return of_kind(k, *value, field); }), field);
    }
  }
  if (body.json("structural_tag")) {
    throw ApiError(501, {"a request without structural_tag", "one with it", "use structured_outputs", "structural_tag",
                         "unsupported_parameter"});
  }
  return rules;
}

}  // namespace hotswap::serve
