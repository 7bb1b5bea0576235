"""Random templates of the grammar that chat templates use, rendered by jinja2 as transformers sets it up: the oracle of
random_test.cpp.  random_templates.py OUT COUNT SEED writes a JSON list of {template, context, text} or {..., error}."""

import copy
import datetime
import json
import random
import re
import sys
import warnings

import jinja2
import jinja2.ext
import jinja2.sandbox

warnings.filterwarnings("ignore")  # Python's own, about the code that jinja2 makes of a template

CONTEXT = {
    "s": "Hello wörld", "n": 3, "m": -7, "f": 2.5, "l": [3, 1, 2], "d": {"b": 1, "a": [1, 2], "c": "x"}, "e": "", "z": None,
    "t": True, "k": False, "x": "<a&'\">", "u": "ß ŉ İ ΑΣ ας ǆ ﬁ\u200b\u00a0", "tup": [[1, "a"], [2, "b"]],
    "big": [{"name": "Bob", "age": 5, "tags": ["x", "y"]}, {"name": "al", "age": 3, "tags": []}, {"name": "Zed", "age": 5, "tags": ["q"]}],
    "messages": [
        {"role": "system", "content": "You are."}, {"role": "user", "content": "hi\n there "},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [True, None, 1.5]}}}]},
    ],
    "nested": {"a": {"b": {"c": [1, {"d": "deep"}]}}}, "num": ["1", "2.5", "x", " 4 "],
}  # fmt: skip
NAMES = [*CONTEXT, "nope", "i", "j", "ns", "v", "w", "loop", "range", "namespace"]
ATTRIBUTES = "name age role content a b c items x upper index first last length previtem nextitem 0 1 get keys _p __class__ count append".split()
TEXTS = ["''", "'a'", "'Hello'", '"it\'s"', "'x,y,z'", "' pad '", "'%s-%d'", "'{}'", "'A b C'", "'é😀'", "'12'", "'<b>'", "'\\n'", "'ab\\n\\ncd'", "'tools'"]  # fmt: skip
NUMBERS = ["0", "1", "2", "-1", "3.5", "1e3", "true", "false", "none", "10", "100", "0.1", "[]", "{}", "()"]
# A filter and how many arguments it gets.
FILTERS = [
    ("upper", 0), ("lower", 0), ("trim", 0), ("length", 0), ("list", 0), ("first", 0), ("last", 0), ("join", 1), ("tojson", 0), ("int", 0), ("float", 0),
    ("string", 0), ("default", 1), ("d", 2), ("sort", 0), ("unique", 0), ("reverse", 0), ("map", 1), ("select", 1), ("reject", 0), ("selectattr", 2),
    ("rejectattr", 1), ("replace", 2), ("title", 0), ("capitalize", 0), ("abs", 0), ("round", 0), ("round", 1), ("sum", 0), ("min", 0), ("max", 0),
    ("items", 0), ("dictsort", 0), ("batch", 1), ("slice", 1), ("indent", 1), ("center", 1), ("safe", 0), ("e", 0), ("escape", 0), ("wordcount", 0),
    ("truncate", 1), ("groupby", 1), ("attr", 1), ("format", 1), ("count", 0), ("urlencode", 0), ("striptags", 0), ("xmlattr", 0), ("filesizeformat", 0),
    ("wordwrap", 0), ("wordwrap", 1),
]  # fmt: skip
TESTS = "defined undefined none string number mapping sequence iterable true false boolean integer float odd even callable lower upper escaped".split()
TESTS_OF_ANOTHER = "eq ne lt gt in divisibleby sameas equalto ge le".split()
METHODS = (
    "upper() lower() strip() strip('x') split() split(',') split(',',1) rsplit(',') startswith('a') endswith('d') replace('a','b') items() keys() "
    "values() get('a') get('q',5) title() find('l') count('a') splitlines() join(['a','b']) join(l) format(1,2) lstrip() rstrip() capitalize() index('a') "
    "zfill(5) center(9) isdigit() isalpha() partition(',') swapcase() rjust(8,'*') isupper() removesuffix('d') casefold() expandtabs() istitle() isspace()"
).split()
NAMED_ARGUMENTS = {
    "map": ["'upper'", "attribute='name'", "'length'", "attribute='age'", "'string'", "attribute='tags.0'", "'tojson'"],
    "select": ["'odd'", "'string'", "'defined'", "'none'"], "groupby": ["'age'", "'name'"], "attr": ["'upper'", "'name'"],
    "selectattr": ["'name'", "'age'", "'content'", "'tool_calls'"], "rejectattr": ["'name'", "'age'", "'content'"],
}  # fmt: skip


class Writer:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, options):
        return self.random.choice(options)

    def leaf(self):
        r = self.random.random()
        return self.pick(NAMES if r < 0.5 else TEXTS if r < 0.75 else NUMBERS)

    def argument(self, name, depth, at):
        if name in NAMED_ARGUMENTS and self.random.random() < 0.8:
            if at == 1:
                return self.pick(["'defined'", "'none'", "'string'", "'number'"])
            return self.pick(NAMED_ARGUMENTS[name])
        return self.expression(min(depth, 1))

    def expression(self, depth):
        if depth <= 0:
            return self.leaf()
        inner = lambda: self.expression(depth - 1 - self.random.randrange(2))  # noqa: E731
        kind = self.random.randrange(16)
        if kind == 0:
            return f"{inner()} {self.pick(['+', '-', '*', '/', '//', '%', '~', '**'])} {inner()}"
        if kind == 1:
            return f"{inner()} {self.pick(['==', '!=', '<', '>', '<=', '>=', 'in', 'not in'])} {inner()}"
        if kind == 2:
            return f"({inner()} {self.pick(['and', 'or'])} {inner()})"
        if kind == 3:
            return f"not {inner()}"
        if kind == 4:
            return f"({inner()} if {inner()}{self.pick(['', f' else {inner()}'])})"
        if kind < 9:
            name, count = self.pick(FILTERS)
            arguments = ",".join(self.argument(name, depth - 1, i) for i in range(count))
            return f"{inner()}|{name}" + (f"({arguments})" if count else "")
        if kind == 9:
            return f"{inner()} is {self.pick(['', 'not '])}{self.pick(TESTS)}"
        if kind == 10:
            return f"{inner()} is {self.pick(TESTS_OF_ANOTHER)}({inner()})"
        if kind == 11:
            return f"{inner()}.{self.pick(ATTRIBUTES)}"
        if kind == 12:
            return f"{inner()}[{inner()}]"
        if kind == 13:  # of a name: jinja2 slices constants by a rule of its own when it compiles
            return f"{self.pick(NAMES)}[{self.pick(['', '1', '-1', '0', 'n'])}:{self.pick(['', '2', '-1', '5'])}{self.pick(['', '', ':2', ':-1'])}]"
        if kind == 14:
            return f"{inner()}.{self.pick(METHODS)}"
        return self.pick(
            [f"[{inner()}, {inner()}]", f"({inner()}, {inner()})", f"{{'a': {inner()}, {self.pick(TEXTS)}: {inner()}}}", f"dict(a={inner()})",
             f"range({self.pick(['3', 'n', '1,4', '5,0,-2'])})", f"({inner()})", f"-{inner()}"]  # fmt: skip
        )

    def tag(self, words):
        return "{%" + self.pick(["", "", "", "-", "+"]) + f" {words} " + self.pick(["", "", "", "-"]) + "%}"

    def text(self):
        return self.pick(["a", "\n", " \n", "  ", "b \n  ", "\n\n", "text", "é"])

    def body(self, depth):
        return "".join(self.statement(depth - 1) for _ in range(self.random.randrange(1, 3)))

    def statement(self, depth):
        kind = self.random.randrange(14)
        if depth <= 0 or kind <= 2:
            return "{{" + self.pick(["", "", "-"]) + f" {self.expression(2)} " + self.pick(["", "", "", "-"]) + "}}"
        if kind == 3:
            return self.text()
        if kind == 4:
            out = self.tag(f"if {self.expression(2)}") + self.text() + self.body(depth)
            if self.random.random() < 0.3:
                out += self.tag(f"elif {self.expression(1)}") + self.body(depth)
            return out + (self.tag("else") + self.body(depth) if self.random.random() < 0.5 else "") + self.tag("endif")
        if kind < 7:
            items = self.pick(["l", "big", "messages", "d", "d.items()", "tup", "range(3)", "s", self.expression(1), "l|reverse", "d|dictsort"])
            test = f" if {self.expression(1)}" if self.random.random() < 0.3 else ""
            out = self.tag(f"for {self.pick(['i', 'j', 'i, j', 'v'])} in {items}{test}") + self.text() + self.body(depth)
            if self.random.random() < 0.1:
                out += self.tag(self.pick(["break", "continue"]))
            return out + (self.tag("else") + self.body(depth) if self.random.random() < 0.2 else "") + self.tag("endfor")
        if kind == 7:
            return self.tag(f"set {self.pick(['v', 'w', 'i', 'ns.a', 'v, w', 'n'])} = {self.expression(2)}")
        if kind == 8:
            return self.tag(f"set {self.pick(['v', 'w'])}" + self.pick(["", " | upper", " | trim | length"])) + self.body(depth) + self.tag("endset")
        if kind == 9:
            call = self.pick(["", "1", "l, 2", "j=3", "n"])
            return self.tag(f"macro mac({self.pick(['', 'i', 'i, j=1', 'v=n'])})") + self.body(depth) + self.tag("endmacro") + "{{ mac(" + call + ") }}"
        if kind == 10:
            return self.tag("set ns = namespace(a=" + self.expression(1) + ")")
        if kind == 11:
            return self.tag("filter " + self.pick(["upper", "trim", "replace('a','b')"])) + self.body(depth) + self.tag("endfilter")
        if kind == 12:
            return "{#" + self.pick(["", "-", "+"]) + " c " + self.pick(["", "-"]) + "#}" + self.text()
        return self.tag(f"with v = {self.expression(1)}") + self.body(depth) + self.tag("endwith")

    def template(self):
        return "".join(self.statement(3) for _ in range(self.random.randrange(1, 6)))


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)
    return made


def main():
    out, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    env, cases = environment(), []
    while len(cases) < count:
        seed += 1
        template = Writer(seed).template()
        case = {"template": template, "seed": seed}
        try:
            case["text"] = env.from_string(template).render(**copy.deepcopy(CONTEXT))  # the filter indent changes lists
        except Exception as error:  # noqa: BLE001 - whatever it is, ours must refuse the template too
            case["error"] = f"{type(error).__name__}: {error}"
        if not re.search(r"0[xX][0-9a-fA-F]{6}", case.get("text", "")):  # an address of a Python object
            cases.append(case)
    with open(out, "w") as file:
        json.dump({"context": CONTEXT, "cases": cases}, file)


main()
