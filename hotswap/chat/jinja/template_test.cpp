// The rules of jinja2 3.1.6, a row each; the texts were printed by it, in transformers' settings.
#include "hotswap/chat/jinja/template.h"

#include <gtest/gtest.h>

#include <thread>

#include "hotswap/chat/jinja/interpreter.h"

namespace hotswap::jinja {
namespace {

using OutJson = nlohmann::ordered_json;

OutJson globals() {
  return OutJson::parse(
      R"({"s": "Hello wörld", "n": 3, "f": 2.5, "l": [3, 1, 2], "d": {"b": 1, "a": [1, 2], "items": 9},
    "e": "", "z": null, "t": true, "x": "<a&'\">", "u": "ß ŉ İ ΑΣ ας ǆ ﬁ", "large": 18446744073709551615,
    "big": [{"name": "Bob", "age": 5}, {"name": "al", "age": 3}, {"name": "Zed", "age": 5}],
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})");
}

std::string rendered(std::string_view source, const Limits& limits = {}) {
  return Template(source, limits).render(globals()).text;
}

struct Row {
  const char *source, *text;
};

class JinjaRows : public testing::TestWithParam<Row> {};

TEST_P(JinjaRows, RendersAsJinja2) { EXPECT_EQ(rendered(GetParam().source), GetParam().text) << GetParam().source; }

INSTANTIATE_TEST_SUITE_P(
    Whitespace, JinjaRows,
    testing::Values(Row{"a\r\nb\rc\n", "a\nb\nc"}, Row{"a\n\n", "a\n"}, Row{"{% if t %}\nx\n{% endif %}\ny", "x\ny"},
                    Row{"  {% if t %}\n  x\n  {% endif %}\ny", "  x\ny"}, Row{"  {%+ if t %}x{% endif %}", "  x"},
                    Row{"{% if t +%}\nx{% endif %}", "\nx"}, Row{"a {%- if t -%} b {%- endif -%} c", "abc"},
                    Row{" {{ n }}\n", " 3"}, Row{"a {{- n -}} b", "a3b"}, Row{" {# c #}\nx", "x"},
                    Row{"{#- c -#} a", "a"}, Row{"{% raw %}\n {{ n }} {% endraw %}\nx", "\n {{ n }} x"},
                    Row{"{{ {'a':{'b':1}} }}", "{'a': {'b': 1}}"}));

INSTANTIATE_TEST_SUITE_P(
    Expressions, JinjaRows,
    testing::Values(
        Row{"{{ 1 + 1 is number }} {{ -2**2 }} {{ 2**3**2 }} {{ -n|abs }}", "2 4 64 3"},
        Row{"{{ 'x' ~ 1|string|upper }} {{ 1 in [1] == true }} {{ 1 < 2 < 3 }}", "x1 False True"},
        Row{"{{ 'a' if false }}|{{ ('a' if false) is defined }}", "|False"},
        Row{"{{ d['items'] }} {{ d.items() }} {{ messages.0.role }} {{ messages[-1]['content'] }}",
            "9 dict_items([('b', 1), ('a', [1, 2]), ('items', 9)]) user yo"},
        Row{"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 10 / 5 }} {{ 2 ** -1 }} {{ -7.5 % 2 }}",
            "3 -4 2 3.5 2.0 0.5 0.5"},
        Row{"{{ 1e16 }} {{ 1e15 * 3 }} {{ 0.00001 }} {{ -0.0 }} {{ 1/3 }} {{ 1_000 }} {{ 0x1F }} {{ 0b11 }}",
            "1e+16 3000000000000000.0 1e-05 -0.0 0.3333333333333333 1000 31 3"},
        Row{"{{ true + 1 }} {{ 1 == 1.0 == true }} {{ 'a' * 3 }} {{ [1] * 2 }}", "2 True aaa [1, 1]"},
        Row{"{{ [\"it's\", 'a\"b', '\\n', '\\u200b\\xa0é'] }}", "[\"it's\", 'a\"b', '\\n', '\\u200b\\xa0é']"},
        Row{"{{ none|select('string')|wordcount }} {{ [1]|map('int')|string|length }} {{ [1]|reverse|wordcount }} {{ "
            "s.upper|string|wordcount }}",
            "5 48 4 9"},  // printed with an address
        Row{"{{ {'a': 1}|truncate(100) }}{{ [1, 2]|truncate(3) }}", "{'a': 1}[1, 2]"},
        Row{"{{ range(1, 9, 3).index(7) }}{{ range(3).count(True) }}{{ range(5, 0, -2).count(1.5) }}{{ "
            "range(3).count('a') }}",
            "2100"},
        Row{"{{ (1,) }} {{ () }} {{ range(3) }} {{ none }} {{ large }}",
            "(1,) () range(0, 3) None 18446744073709551615"},
        Row{"{{ s[1:3] }} {{ s[::-1] }} {{ l[5] }} {{ l[0:2] }} {{ s[-1] }}", "el dlröw olleH  [3, 1] d"},
        Row{"{{ ('a'|safe) + '<' }} {{ [x|safe] }} {{ ('%s'|safe) % x }}",
            "a&lt; [Markup('<a&\\'\">')] &lt;a&amp;&#39;&#34;&gt;"},
        Row{"{{ '%05.2f|%d|%s|%r|%x|%-5s|' % (3.14159, 42, 'a', 'b', 255, 'l') }}", "03.14|42|a|'b'|ff|l    |"},
        Row{"{{ '{:>5}|{:05d}|{:,}|{:.2f}|{!r}'.format('a', 5, 1234567, 3.14159, 'q') }}",
            "    a|00005|1,234,567|3.14|'q'"}));

INSTANTIATE_TEST_SUITE_P(
    Statements, JinjaRows,
    testing::Values(
        Row{"{% for i in l %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.previtem }};{% endfor %}",
            "1/3False;2/3False3;3/3True1;"},
        Row{"{% for i in l if i > 1 %}{{ loop.index }}:{{ i }} {% endfor %}", "1:3 2:2 "},
        Row{"{% for i in [1,2] %}{% break %}{% else %}B{% endfor %}{% for i in [] %}{% else %}E{% endfor %}", "BE"},
        Row{"{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", "7"},
        Row{"{% for i in [1] %}{% set q = 1 %}{% endfor %}{{ q }}{% if t %}{% set q = 2 %}{% endif %}{{ q }}", "2"},
        Row{"{% macro m(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }} {{ m(1,2,3,x=4) }}",
            "11(){} 12(3,){'x': 4}"},
        Row{"{% macro q() %}[{{ caller(1) }}]{% endmacro %}{% call(v) q() %}in {{ v }}{{ n }}{% endcall %}", "[in 13]"},
        Row{"{% macro z() %}{{ later }}{% endmacro %}{{ z() }}{% set later = 1 %}{{ z() }}", "1"},
        Row{"{% set y %} b {{ n }} {% endset %}{{ y }}|{% set w | upper | trim %} abc {% endset %}{{ w }}",
            " b 3 |ABC"},
        Row{"{% filter upper %}abc{{ n }}{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}{{ a }}", "ABC31"},
        Row{"{% for i in l recursive %}{{ i }}{% if i == 3 %}({{ loop([7, 8]) }}){% endif %}{{ loop.depth }}{% endfor "
            "%}",
            "3(7282)11121"},
        Row{"{% generation %}g{{ n }}{% endgeneration %}{% set q = 5 %}{% block b %}{{ q }}{% endblock %}", "g35"},
        Row{"{% if nope %}{{ x|nofilter }}{% endif %}ok", "ok"}));

INSTANTIATE_TEST_SUITE_P(
    FiltersAndMethods, JinjaRows,
    testing::Values(
        Row{"{{ u|upper }}|{{ u|lower }}|{{ u.title() }}|{{ u.casefold() }}",
            "SS ʼN İ ΑΣ ΑΣ Ǆ FI|ß ŉ i̇ ας ας ǆ ﬁ|Ss ʼN İ Ας Ας ǅ Fi|ss ʼn i̇ ασ ασ ǆ fi"},
        Row{"{{ l|sort }} {{ big|sort(attribute='name')|map(attribute='name')|join(',') }} {{ big|sum('age') }}",
            "[1, 2, 3] al,Bob,Zed 13"},
        Row{"{{ big|groupby('age') }}",
            "[(3, [{'name': 'al', 'age': 3}]), (5, [{'name': 'Bob', 'age': 5}, {'name': 'Zed', 'age': 5}])]"},
        Row{"{{ d|tojson }} {{ {1:2,none:3}|tojson(indent=1) }} {{ 'é\\u0001'|tojson }} {{ "
            "'😀'|tojson(ensure_ascii=true) }}",
            "{\"b\": 1, \"a\": [1, 2], \"items\": 9} {\n \"1\": 2,\n \"null\": 3\n} \"é\\u0001\" \"\\ud83d\\ude00\""},
        Row{"{{ '5.7'|int }} {{ '1e3'|int }} {{ 'x'|int(7) }} {{ 2.5|round }} {{ 42|round }} {{ 42.55|round(1,'floor') "
            "}}",
            "5 1000 7 2.0 42 42.5"},
        Row{"{{ 'a,b,c'.split(',', 1) }} {{ ' x '.strip() }} {{ 'abc'.startswith(('a','b')) }} {{ ','.join(['a']) }}",
            "['a', 'b,c'] x True a"},
        Row{"{{ 'a\\n\\nb'|indent }} {{ 'foo bar baz qux'|truncate(9) }} {{ 'a-b c'|title }}",
            "a\n\n    b foo... A-B C"},
        Row{"{{ nope|default('d') }} {{ ''|default('d', true) }} {{ none|default('d') }} {{ l|last }} {{ []|first }}",
            "d d None 2 "},
        Row{"{{ l|batch(2)|list }} {{ l|slice(2)|list }} {{ [1,1,2]|unique|list }} {{ "
            "big|selectattr('age','eq',5)|list|length }}",
            "[[3, 1], [2]] [[3, 1], [2]] [1, 2] 2"}));

struct RefusedTemplate {
  const char* source;
  Fault kind;
};

class JinjaRefuses : public testing::TestWithParam<RefusedTemplate> {};

TEST_P(JinjaRefuses, WithTheKindOfError) {
  try {
    const std::string text = rendered(GetParam().source);
    FAIL() << GetParam().source << " rendered as " << text;
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.fault(), GetParam().kind) << GetParam().source << ": " << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, JinjaRefuses,
    testing::Values(RefusedTemplate{"{{ ", Fault::kSyntax}, RefusedTemplate{"{% if %}{% endif %}", Fault::kSyntax},
                    RefusedTemplate{"{% do x %}", Fault::kSyntax}, RefusedTemplate{"{% for i in l %}", Fault::kSyntax},
                    RefusedTemplate{"{{ x|nofilter }}", Fault::kSyntax}, RefusedTemplate{"{% break %}", Fault::kSyntax},
                    RefusedTemplate{"{{ 'a", Fault::kSyntax}, RefusedTemplate{"{# ", Fault::kSyntax},
                    RefusedTemplate{"{{ nope.x }}", Fault::kUndefined},
                    RefusedTemplate{"{{ nope + 1 }}", Fault::kUndefined},
                    RefusedTemplate{"{{ nope() }}", Fault::kUndefined}, RefusedTemplate{"{{ 'a' + 1 }}", Fault::kType},
                    RefusedTemplate{"{{ 1 < 'a' }}", Fault::kType}, RefusedTemplate{"{{ none|length }}", Fault::kType},
                    RefusedTemplate{"{{ nope|tojson }}", Fault::kType},
                    RefusedTemplate{"{% for i in none %}{% endfor %}", Fault::kType},
                    RefusedTemplate{"{% include 'a' %}", Fault::kType}, RefusedTemplate{"{{ 1 / 0 }}", Fault::kValue},
                    RefusedTemplate{"{% for a, b in [(1,2,3)] %}{% endfor %}", Fault::kValue},
                    RefusedTemplate{"{{ l.append(1) }}", Fault::kSecurity},
                    RefusedTemplate{"{{ ''.__class__() }}", Fault::kSecurity},
                    RefusedTemplate{"{{ range(100001) }}", Fault::kValue},
                    RefusedTemplate{"{{ raise_exception('no ' ~ n) }}", Fault::kRaised},
                    RefusedTemplate{"{{ 9223372036854775807 + 1 }}", Fault::kLimit}));

TEST(JinjaErrors, SayTheTemplatesWordsAndTheLine) {
  try {
    rendered("a\n\n{{ raise_exception('roles must alternate') }}");
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.message(), "roles must alternate");
    EXPECT_EQ(error.line(), 3);
  }
}

std::string repeated(const char* text) {
  std::string out;
  for (int i = 0; i < 50'000; ++i) out += text;
  return out;
}

// Each of these would take all memory, all time or the whole stack.
TEST(JinjaLimits, HostileTemplatesEndInAnError) {
  const std::string hostile[] = {
      "{{ 'a' * 10000000000 }}",
      "{{ [0] * 10000000000 }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ 'a'.center(10000000000) }}",
      "{% set ns = namespace(x='a') %}{% for i in range(100000) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(x) %}{% if x %}{% for i in x %}{{ m([x]) }}{% endfor %}{% endif %}{% endmacro %}{{ m([1]) }}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{% for i in l recursive %}{{ loop(l) }}{% endfor %}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{{ " + repeated("(") + "1",
      repeated("{% if t %}"),
      "{{ " + repeated("-") + "1 }}",
      "{{ 'a'" + repeated("|upper") + " }}",
      "{{ n" + repeated(".a") + " }}",
      "{{ 1" + repeated("+1") + " }}",
      "{{ 1" + repeated(" if 1") + " }}",
      "{% if n %}" + repeated("{% elif n %}") + "{% endif %}",
  };
  Limits limits;
  limits.nodes = 2'000'000;
  for (const std::string& source : hostile) {
    EXPECT_THROW(rendered(source, limits), TemplateError) << source.substr(0, 100);
  }
  EXPECT_THROW(Template(std::string(2 << 20, 'a')), TemplateError);
  EXPECT_THROW(Template("\xff"), TemplateError);
}

TEST(JinjaLimits, TimeIsOne) {
  Limits limits;
  limits.time = std::chrono::milliseconds(50);
  limits.nodes = INT64_MAX;
  EXPECT_THROW(rendered("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", limits),
               TemplateError);
}

TEST(JinjaThreads, OneTemplateRendersOnMany) {
  const Template compiled(
      "{% set ns = namespace(a=0) %}{% for i in range(200) %}{% set ns.a = ns.a + i * k %}{% endfor %}{{ ns.a }}");
  std::vector<std::thread> team;
  std::vector<std::string> texts(8);
  for (int k = 0; k < 8; ++k) {
    team.emplace_back([&, k] { texts[k] = compiled.render({{"k", k}}).text; });
  }
  for (auto& thread : team) thread.join();
  for (int k = 0; k < 8; ++k) EXPECT_EQ(texts[k], std::to_string(19900 * k));
}

TEST(JinjaGenerations, SpansAreThoseOfTheAssistantsText) {
  const Rendered made =
      Template(
          "é{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
          "{% endgeneration %}{% endif %}{% endfor %}.")
          .render(globals());
  ASSERT_EQ(made.generations.size(), 1u);
  const auto [begin, end] = made.generations[0];
  EXPECT_EQ(made.text.substr(begin, end - begin), "yo");
}

}  // namespace
}  // namespace hotswap::jinja
