// Schemas: which are refused, what their grammars allow, and the validator. tests/structured_output_test.py holds
// random ones against Python's jsonschema.
#include "hotswap/grammar/schema_rules.h"
#include "hotswap/grammar/schema_validator.h"
#include "hotswap/grammar/test_grammar.h"

namespace hotswap {
namespace {

using namespace grammar;
using test_support::expect_has;
using test_support::message_of;

SchemaJson parsed(const std::string& text) { return SchemaJson::parse(text); }

class Schemas : public test_support::WithXgrammar {
 protected:
  void expect(const std::string& schema, const std::vector<std::string>& yes,
              const std::vector<std::string>& no) const {
    const std::string rules = schema_grammar(parsed(schema));
    for (const std::string& text : yes) {
      EXPECT_TRUE(takes(rules, text)) << schema << " " << text;
      EXPECT_EQ(answer_problem(parsed(schema), text), "") << schema << " " << text;
    }
    for (const std::string& text : no) EXPECT_FALSE(takes(rules, text)) << schema << " " << text;
  }
};

// The forms of which xgrammar's own reading of schemas is wrong in silence.
TEST_F(Schemas, FormsThatTheLibraryReadsWrong) {
  expect(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]})",
         {R"({"a":1,"b":2})", R"({"b":null})"}, {R"({"a":1})", "{}"});
  expect(
      R"({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}})",
      {R"({"a":1})", R"({"b":"x"})", R"({"a":1,"b":"x"})"}, {"1", "{}", R"({"a":"x"})"});
  expect(R"({"$ref": "#/$defs/n", "maximum": 9, "$defs": {"n": {"type": "integer", "minimum": 5}}})", {"5", "9"},
         {"4", "10", "99"});
  expect(R"({"type": "string", "minLength": 2, "maxLength": 3})",
         {R"("ab")", R"("\"\\")", R"("\u00e9\n")", "\"\u00e9\U0001F600x\""},
         {R"("a")", R"("abcd")", "\"a\tb\"", std::string("\"a\0b\"", 5), R"("\ud83d\ude00a")"});
  expect(
      R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 3}}, "required": ["a"]}]})",
      {R"({"a":3})"}, {R"({"a":2})", "{}", "3"});
}

TEST_F(Schemas, Objects) {
  expect(
      R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]})",
      {R"({"b":2})", R"({"a":1, "b":2})", R"({"b": 2,"c":3})", "{ \n\"a\":1,\"b\":2,\"c\":3}"},
      {"{}", R"({"a":1})", R"({"b":2,"a":1})", R"({"b":2,})", R"({"b":2,"d":1})", "{   \"b\":2}"});
  expect(R"({"type": "object", "properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
         {"{}", R"({"ab":null,"a":1})", R"({"abc":1,"b":2})", R"({"":1})"},
         {R"({"ab":1})", R"({"a":null})", R"({"\u0061b":1})"});
  expect(
      R"({"type": "object", "properties": {"a": true, "b": true, "c": true}, "minProperties": 2, "maxProperties": 2})",
      {R"({"a":1,"c":[]})", R"({"b":{},"c":"x"})"}, {"{}", R"({"a":1})", R"({"a":1,"b":1,"c":1})"});
  expect(R"({"type": "object", "additionalProperties": true, "minProperties": 1})", {R"({"x":[1,{"y":2}]})"}, {"{}"});
  expect(R"({"type": "object"})", {"{}", R"({"any":{"thing":[true]}})"}, {"[]", "1"});
}

TEST_F(Schemas, Lists) {
  expect(R"({"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 3})",
         {"[1]", "[1,2,1]", "[ 2, 2 ]"}, {"[]", "[1,1,1,1]", "[3]"});
  expect(R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false})",
         {"[]", "[1]", R"([1,"a"])"}, {R"(["a"])", R"([1,"a",2])"});
  expect(R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 3})",
         {"[1,null,null]"}, {"[1,null]", "[null,null,null]"});
  expect(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
}

TEST_F(Schemas, ValuesAndTypes) {
  expect(R"({"enum": ["a", 1, null, {"b": [2]}], "type": ["string", "object"]})", {R"("a")", R"({"b":[2]})"},
         {"1", "null"});
  expect(R"({"type": "string", "pattern": "^[\"a]+\\\\$"})", {R"("\"a\\")"}, {R"("b")"});
  expect(R"({"type": "string", "pattern": "b", "minLength": 1})", {R"("abc")", R"("b")"}, {R"("ac")"});
  expect(R"({"type": "string", "format": "date"})", {R"("2024-02-28")", R"("1999-12-31")"},
         {R"("2024-02-30")", R"("2024-13-01")"});
  expect(R"({"type": "string", "format": "ipv4"})", {R"("192.168.0.255")"}, {R"("256.1.1.1")"});
  expect(
      R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"]}, {"type": "object", "properties": {"k": {"const": "y"}, "n": {"type": "null"}}, "required": ["k"]}]})",
      {R"({"k":"x"})", R"({"k":"y","n":null})"}, {R"({"k":"x","n":null})"});
  expect(
      R"({"properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"], "type": "object"})",
      {R"({"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"}, {"{}", R"({"next":1})"});
}

TEST(SchemaErrors, NameTheKeyword) {
  for (const auto& [schema, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"multipleOf": 3})", "'multipleOf'"},
           {R"({"properties": {"a": {"not": {}}}})", "'not'"},
           {R"({"type": "array", "uniqueItems": true})", "'uniqueItems'"},
           {R"({"items": [{}]})", "'schema': an object, true or false was expected"},
           {R"({"type": "any"})", "'type'"},
           {R"({"minLength": -1})", "'minLength'"},
           {R"({"exclusiveMinimum": true})", "'exclusiveMinimum'"},
           {R"({"$ref": "#/$defs/no"})", "'$ref': nothing is at"},
           {R"({"$ref": "http://other/schema"})", "'$ref': one within"},
           {R"({"$ref": "#"})", "'$ref': it leads back to itself"},
           {R"({"allOf": [{"$ref": "#"}]})", "'$ref': it leads back to itself"},
           {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "'oneOf'"},
           {R"x({"type": "string", "pattern": "(?=a)"})x", "look-around"},
           {R"({"type": "string", "pattern": "["})", "without its ]"},
           {R"({"type": "string", "pattern": "^a*$", "maxLength": 3})", "'pattern': beside minLength or maxLength"},
           {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "'pattern': two of them"},
           {R"({"type": "object", "minProperties": 2})", "'minProperties'"},
           {"false", "no value fits it"},
           {R"({"type": "integer", "minimum": 2, "maximum": 1})", "no value fits it"},
           {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "no value fits it"},
           {R"({"enum": [1], "type": "string"})", "no value fits it"}}) {
    const std::string message = message_of([&, text = schema] { schema_grammar(parsed(text)); });
    expect_has(message, {"expected", what});
  }
  SchemaJson deep = true, wide = SchemaJson::object();
  for (int i = 0; i < 40; ++i) deep = {{"items", deep}};
  expect_has(message_of([&] { schema_grammar(deep); }), {"levels"});
  for (int i = 0; i < 1100; ++i) wide["properties"][std::to_string(i)] = true;
  expect_has(message_of([&] { schema_grammar(wide); }), {"keys"});
  expect_has(message_of([&] { schema_grammar({{"description", std::string(70000, 'a')}}); }), {"bytes"});
}

// Large, and within the limits: each is served within seconds, or refused.
TEST_F(Schemas, HostileOnesEnd) {
  std::vector<SchemaJson> hostile;
  SchemaJson wide = {{"type", "object"}}, many = {{"anyOf", SchemaJson::array()}},
             both = {{"allOf", SchemaJson::array()}};
  for (int i = 0; i < 450; ++i) wide["properties"]["property number " + std::to_string(i)] = {{"type", "string"}};
  SchemaJson open = wide, counted = wide;
  open["additionalProperties"] = true;
  counted["minProperties"] = 5;
  for (int i = 0; i < 120; ++i) many["anyOf"].push_back({{"properties", {{std::to_string(i), {{"$ref", "#"}}}}}});
  for (int i = 0; i < 40; ++i) both["allOf"].push_back({{"anyOf", {{{"minimum", i}}, {{"maxLength", i}}}}});
  hostile = {wide, open, counted, many, both};
  hostile.push_back(parsed(R"({"type": "string", "minLength": 100000, "maxLength": 1000000})"));
  hostile.push_back(parsed(
      R"({"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000, "items": {"minLength": 1000}}})"));
  hostile.push_back(parsed(R"({"type": "string", "pattern": "((a|b|ab){1,90}c){1,90}"})"));
  hostile.push_back(parsed(
      R"({"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "allOf": [{"properties": {"b": {"items": {"$ref": "#/properties/a"}}}}]})"));
  for (const SchemaJson& schema : hostile) {
    const auto begin = std::chrono::steady_clock::now();
    std::string outcome = "served";
    try {
      engine->compile(schema_grammar(schema));
    } catch (const Error& error) {
      outcome = error.what();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_LT(seconds, 20) << schema.dump().substr(0, 100);
    RecordProperty("outcome", outcome.substr(0, 100));
    std::printf("%.2f s: %s: %s\n", seconds, schema.dump().substr(0, 60).c_str(), outcome.substr(0, 120).c_str());
  }
}

TEST(Validator, FindsWhatDoesNotHold) {
  for (const auto& [schema, value, problem] : std::vector<std::array<std::string, 3>>{
           {R"({"type": "integer"})", "1.0", ""},
           {R"({"type": "integer"})", "1.5", "'type'"},
           {R"({"const": 1})", "true", "'const'"},
           {R"({"enum": [{"a": 1, "b": 2}]})", R"({"b": 2, "a": 1.0})", ""},
           {R"({"minLength": 2})", "\"\U0001F600\"", "'minLength'"},
           {R"({"pattern": "^a$"})", R"("b\na")", "'pattern'"},
           {R"({"pattern": "a"})", R"("cab")", ""},
           {R"({"properties": {"a": {"items": {"maximum": 3}}}})", R"({"a": [1, 4]})",
            "'maximum' does not hold at /a/1"},
           {R"({"additionalProperties": false, "properties": {"a": {}}})", R"({"b": 1})",
            "'false' does not hold at /b"},
           {R"({"oneOf": [{"minimum": 1}, {"maximum": 2}]})", "1", "'oneOf'"},
           {R"({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"minItems": 1}}})", "[]",
            "'anyOf'"},
           {R"({"prefixItems": [{"type": "null"}], "items": {"type": "integer"}})", "[null, 1, \"a\"]",
            "'type' does not hold at /2"},
           {R"({"required": ["a"]})", "{}", "'required' does not hold at the top"},
           {"{}", "{\"a\": ", "expected"}}) {
    const std::string found = answer_problem(parsed(schema), value);
    if (problem.empty()) {
      EXPECT_EQ(found, "") << schema << " " << value;
    } else {
      expect_has(found, {problem});
    }
  }
}

}  // namespace
}  // namespace hotswap
