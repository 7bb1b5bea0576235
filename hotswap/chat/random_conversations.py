"""Random conversations through chat templates, rendered by transformers: the oracle of conversations_test.cpp.

    random_conversations.py OUT COUNT SEED [FILE.jinja | FOLDER with tokenizer_config.json ...]

Writes {templates: {name: text}, cases: [{template, messages, ..., text and spans | error}]}. The templates are those below
and those of the arguments.
"""

import json
import random
import sys
import warnings
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

warnings.filterwarnings("ignore")  # Python's own, about the code that jinja2 makes of a template

TEMPLATES = {
    "spans": """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content or '' }}
{%- if m.reasoning_content is defined and m.reasoning_content %} ({{ m.reasoning_content|trim }}){% endif %}<|im_end|>{% endgeneration %}
{% else %}{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "strict": """{{ bos_token }}{% if messages[0].role == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0].content %}
{%- else %}{% set loop_messages = messages %}{% endif %}{% for m in loop_messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate: ' ~ m.role) }}{% endif %}
{%- if m.role == 'user' %}[INST] {{ (system ~ '\\n\\n' if loop.last and system is defined else '') ~ m.content }} [/INST]
{%- else %} {{ m.content|trim }}{{ eos_token }}{% endif %}{% endfor %}""",
    "tools": """{% macro show(value, depth=0) %}{% if value is mapping %}{% for k, v in value|dictsort %}{{ '  ' * depth }}{{ k }}:
{{ show(v, depth + 1) }}{% endfor %}{% elif value is iterable and value is not string %}{% for v in value %}- {{ v|tojson }}
{% endfor %}{% else %}{{ '  ' * depth }}{{ value }}
{% endif %}{% endmacro %}{% set ns = namespace(calls=0, last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}{% for t in tools %}{{ t|tojson(indent=2) }}
{{ show(t.function) }}{% endfor %}{% endif %}{% for m in messages %}<{{ m['role']|upper }}{{ ' last' if loop.index0 == ns.last }}>
{%- if m.content is string %}{{ m.content.strip() }}{% elif m.content is none %}-{% else %}{% for p in m.content %}{{ p.text if p.type == 'text' else '[' ~ p.type ~ ']' }}{{ ', ' if not loop.last }}{% endfor %}{% endif %}
{%- for c in m.tool_calls or [] %}{% set ns.calls = ns.calls + 1 %}
{{ ns.calls }}. {{ c.function.name }}({% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v|tojson(ensure_ascii=true) }}{{ ', ' if not loop.last }}{% endfor %}{% endif %}){% endfor %}
{%- if m.role == 'tool' %}{{ '%s: %s' % (m.name|default('?'), m.tool_call_id|default('none')) }}{% if messages[loop.index0 - 1].role != 'tool' %} first{% endif %}{% endif %}
{% endfor %}{{ documents|length if documents else 'no documents' }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}""",
    "thinking": """{% for m in messages %}{% if m.role == 'assistant' %}{% set content = m.content if m.content is string else '' %}
{%- if '</think>' in content %}{% set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% else %}{% set reasoning = m.reasoning_content or '' %}{% endif %}
{{ '<think>\\n' ~ reasoning ~ '\\n</think>' if reasoning and (loop.last or messages[-1].role == 'tool') }}{{ content }}{% else %}
{{ m.role[:1] ~ m.role[1:]|capitalize }}: {{ m.content|string|replace('\\n', ' ')|wordwrap(30) }}{% endif %}{{ loop.revindex0 }}{{ loop.previtem.role if loop.previtem is defined }}
{% endfor %}{{ messages|selectattr('role', 'in', ['user', 'tool'])|map(attribute='content')|map('string')|join('|')|truncate(60) }}
{{ messages|groupby('role')|map('first')|join(',') }}{{ reasoning_effort|default('medium')|title }}{{ messages[::-1]|map(attribute='role')|unique|list }}""",
}
WORDS = ["Hello", "what is", "the capital", "of France?", " ", "\n", "\n\n", "  two", "é", "日本語", "😀", "\u200b", "\u00a0", "<b>&'\"", "</think>", "<think>",
         "{{ x }}", "{% if %}", "<|im_end|>", "\\n", "'quoted'", "ß İ ŉ", "ΑΣ", "1.5", "\t", "[INST]", "\x7f", "\u2028", "a\u0301", "%s"]  # fmt: skip
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


class Writer:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def maybe(self, share):
        return self.random.random() < share

    def pick(self, options):
        return self.random.choice(options)

    def text(self):
        return "".join(self.pick(WORDS) for _ in range(self.random.randrange(0, 9)))

    def value(self, depth=2):
        kind = self.random.randrange(9)
        if depth > 0 and kind == 0:
            return [self.value(depth - 1) for _ in range(self.random.randrange(3))]
        if depth > 0 and kind == 1:
            return {self.pick("abc") + self.pick(["", "é", " x"]): self.value(depth - 1) for _ in range(self.random.randrange(3))}
        return self.pick([None, True, False, 0, -7, 2.5, 1e20, 1e-7, 3.0, 12345678901, self.text(), self.text(), ""])

    def content(self, role):
        kind = self.random.random()
        if kind < 0.1:
            parts = [{"type": "text", "text": self.text()} for _ in range(self.random.randrange(1, 3))]
            return parts + ([{"type": "image", "image": "a.png"}] if role == "user" and self.maybe(0.2) else [])
        if kind < 0.2 and role == "assistant":
            return None
        return self.text()

    def call(self):
        arguments = {self.pick(["city", "days", "é"]): self.value() for _ in range(self.random.randrange(3))}
        if self.maybe(0.2):
            arguments = self.pick([json.dumps(arguments), "not JSON", ""])
        out = {"type": "function", "function": {"name": self.pick(["f", "get_weather"]), "arguments": arguments}}
        return {"id": self.pick(["call_1", "abcdefghi"]), **out} if self.maybe(0.8) else out

    def message(self, role):
        out = {"role": role, "content": self.content(role)}
        if role == "assistant" and self.maybe(0.3):
            out["tool_calls"] = [self.call() for _ in range(self.random.randrange(1, 3))]
        if role == "assistant" and self.maybe(0.2):
            out["reasoning_content"] = self.pick([self.text(), None])
        if role == "tool":
            out["tool_call_id"] = self.pick(["call_1", "abcdefghi"])
            if self.maybe(0.5):
                out["name"] = "f"
        if self.maybe(0.03):
            del out["content"]
        return out

    def messages(self):
        out = [self.message("system")] if self.maybe(0.5) else []
        if self.maybe(0.7):  # as people talk
            for _ in range(self.random.randrange(1, 4)):
                out.append(self.message("user"))
                if self.maybe(0.8):
                    out.append(self.message("assistant"))
                    if "tool_calls" in out[-1] and self.maybe(0.8):
                        out += [self.message("tool") for _ in out[-1]["tool_calls"]] + [self.message("assistant")]
            return out
        roles = ["user", "assistant", "tool", "system", "developer", "other"]
        return out + [self.message(self.pick(roles)) for _ in range(self.random.randrange(1, 6))]

    def tool(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "description": self.text()}}, "required": ["city"]}
        function = {"name": self.pick(["f", "get_weather"]), "description": self.text(), "parameters": schema}
        return {"type": "function", "function": function}

    def case(self):
        out = {"messages": self.messages(), "tools": None, "documents": None, "add_generation_prompt": self.maybe(0.5), "variables": {}}
        if self.maybe(0.4):
            out["tools"] = [self.tool() for _ in range(self.random.randrange(1, 3))]
        if self.maybe(0.1):
            out["documents"] = [{"title": self.text(), "text": self.text()}]
        for name, values in [("enable_thinking", [True, False]), ("reasoning_effort", ["low", "high"]), ("date_string", ["1 Jan 2026"])]:
            if self.maybe(0.3):
                out["variables"][name] = self.pick(values)
        out["continue"] = not out["add_generation_prompt"] and self.maybe(0.2)
        return out


def templates(arguments):
    out = dict(TEMPLATES)
    for argument in map(Path, arguments):
        if argument.is_dir():
            template = json.loads((argument / "tokenizer_config.json").read_text()).get("chat_template")
            if (argument / "chat_template.jinja").exists():
                template = (argument / "chat_template.jinja").read_text()
            if isinstance(template, str):
                out[argument.name] = template
        else:
            out[argument.name] = argument.read_text()
    return out


def main():
    out, count, seed, known = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), templates(sys.argv[4:])
    names, cases = list(known), []
    for i in range(count):
        name = names[i % len(names)]
        case = {"template": name, "seed": seed + i, **Writer(seed + i).case()}
        fields = json.loads(json.dumps(case))  # some templates change their input
        try:
            texts, spans = render_jinja_template(
                [fields["messages"]], tools=fields["tools"], documents=fields["documents"], chat_template=known[name],
                return_assistant_tokens_mask=name == "spans", continue_final_message=fields["continue"],
                add_generation_prompt=fields["add_generation_prompt"], **SPECIAL, **fields["variables"])  # fmt: skip
            case["text"] = texts[0]
            if name == "spans" and not case["continue"]:
                case["spans"] = spans[0]
        except Exception as error:  # noqa: BLE001 - whatever it is, ours must refuse the conversation too
            case["error"] = f"{type(error).__name__}: {error}"
        cases.append(case)
    Path(out).write_text(json.dumps({"templates": known, "special": SPECIAL, "cases": cases}))


if __name__ == "__main__":
    main()
