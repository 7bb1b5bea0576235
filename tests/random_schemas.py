"""Random JSON schemas over the keywords that `hotswap serve` serves, single and combined; some that no value fits, and
some that it refuses."""

import random

WORDS = ["a", "b", "id", "name", "the name", "é", 'quo"te', "x1", "back\\slash", "kind", "tags", "line\nend", "😀", ""]
PATTERNS = [
    "^[a-z]{1,4}$", "[0-9]+", "^(ab|cd)*$", "^\\d{3}-\\w+$", "x?y", "^[^a-z]{2}$", '^"[^"]*"$', "^\\\\n$", "^.{2,5}$", "^é+|b$",
    "a{2,3}?", "^(?:a|(b|c)){2}\\.$", "\\s", "^\\S\\D$", "^[\\w.-]+@[a-z]+$", "^$", "^[\\u00e0-\\u00ff]$", "(?=a)b", "\\bword", "[", "a{3,1}",
]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "hostname", "email", "uri", "binary"]
NOT_SERVED = [
    {"multipleOf": 3}, {"not": {"type": "null"}}, {"uniqueItems": True}, {"patternProperties": {"^a": {}}}, {"contains": {}},
    {"propertyNames": {"maxLength": 2}}, {"if": {"const": 1}}, {"dependentRequired": {"a": ["b"]}}, {"minLength": -1},
    {"type": "any"}, {"$ref": "#/nothing"}, {"$ref": "http://elsewhere/x"}, {"enum": []},
]


# All that `hotswap serve` serves (docs/serving.md).
KEYWORDS = (
    "type enum const properties required additionalProperties minProperties maxProperties items prefixItems minItems maxItems "
    "minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum anyOf allOf oneOf $ref"
).split()


def keywords_of(schema):
    """The keywords that stand in a schema, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(keywords_of, schema))
    if not isinstance(schema, dict):
        return set()
    return set(KEYWORDS) & set(schema) | set().union(*map(keywords_of, schema.values()))


class Schemas:
    """`draw` gives a schema; `defs` are those that its references may name."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def value(self, depth=1):
        r = self.random
        scalars = [None, True, False, 0, 1, -7, 1.0, 2.5, 1e20, "", "a", 'q"\\\n', "é😀", "1"]
        if depth > 0 and r.random() < 0.3:
            return r.choice([[self.value(0), self.value(0)], {r.choice(WORDS): self.value(0)}, [], {}])
        return r.choice(scalars)

    def counts(self, low, high, top=5):
        r = self.random
        out = {}
        if r.random() < 0.5:
            out[low] = r.randint(0, top)
        if r.random() < 0.5:
            out[high] = r.randint(max(0, out.get(low, 0) - (r.random() < 0.1)), top + 3)
        return out

    def string(self):
        r = self.random
        kind = r.random()
        if kind < 0.35:
            return {"type": "string", **self.counts("minLength", "maxLength", r.choice([3, 40]))}
        if kind < 0.6:
            return {"type": "string", "pattern": r.choice(PATTERNS), **(self.counts("minLength", "maxLength") if r.random() < 0.2 else {})}
        if kind < 0.75:
            return {"type": "string", "format": r.choice(FORMATS)}
        return {"type": "string"}

    def bounds(self, whole):
        r = self.random
        def edge():
            kind = r.random()
            if kind < 0.4:
                return r.randint(-20, 20)
            if kind < 0.6:
                return r.randint(-(10**6), 10**6)
            if kind < 0.7:
                return r.choice([10**14, -(10**14), 10**18])
            return round(r.uniform(-3, 3), r.randint(1, 4))
        out = {}
        if r.random() < 0.6:
            out[r.choice(["minimum", "exclusiveMinimum"])] = edge()
        if r.random() < 0.6:
            low = next(iter(out.values()), None)
            out[r.choice(["maximum", "exclusiveMaximum"])] = edge() if low is None or r.random() < 0.2 else low + abs(edge())
        return {"type": "integer" if whole else "number", **out}

    def object(self, depth):
        r = self.random
        names = r.sample(WORDS, r.randint(0, 4))
        out = {"type": "object"} if r.random() < 0.9 else {}
        if r.random() < 0.85:
            out["properties"] = {name: self.schema(depth - 1) for name in names}
        if r.random() < 0.6:
            out["required"] = [n for n in names if r.random() < 0.6] + ([r.choice(WORDS)] if r.random() < 0.15 else [])
            out["required"] = list(dict.fromkeys(out["required"]))
        if r.random() < 0.4:
            out["additionalProperties"] = r.choice([True, False, False]) if r.random() < 0.6 else self.schema(depth - 1)
        if r.random() < 0.2:
            out.update(self.counts("minProperties", "maxProperties", 3))
        return out

    def array(self, depth):
        r = self.random
        out = {"type": "array"} if r.random() < 0.9 else {}
        if r.random() < 0.8:
            out["items"] = self.schema(depth - 1)
        if r.random() < 0.3:
            out["prefixItems"] = [self.schema(depth - 1) for _ in range(r.randint(1, 3))]
        out.update(self.counts("minItems", "maxItems", 4))
        return out

    def combined(self, depth):
        r = self.random
        kind = r.choice(["anyOf", "anyOf", "oneOf", "allOf"])
        if kind == "oneOf" and r.random() < 0.6:  # branches that differ in a constant
            branches = []
            for i in range(r.randint(1, 3)):
                one = self.object(depth - 1)
                one["type"] = "object"
                one["properties"] = {"kind": {"const": f"k{i}"}, **{k: v for k, v in one.get("properties", {}).items() if k != "kind"}}
                one["required"] = ["kind", *[n for n in one.get("required", []) if n != "kind"]]
                branches.append(one)
        else:
            branches = [self.schema(depth - 1) for _ in range(r.randint(1, 3))]
        beside = self.schema(0) if r.random() < 0.4 else {}
        if not isinstance(beside, dict):
            beside = {}
        return {**beside, kind: branches}

    def schema(self, depth):
        r = self.random
        kind = r.random()
        if kind < 0.03:
            return r.choice([True, {}, False])
        if kind < 0.05:
            return r.choice(NOT_SERVED)
        if kind < 0.12 and self.names:
            beside = self.schema(0) if r.random() < 0.2 else {}
            return {"$ref": "#/$defs/" + r.choice(self.names), **(beside if isinstance(beside, dict) else {})}
        if depth > 0 and kind < 0.35:
            return self.object(depth)
        if depth > 0 and kind < 0.48:
            return self.array(depth)
        if depth > 0 and kind < 0.6:
            return self.combined(depth)
        return self.scalar()

    def scalar(self):
        r = self.random
        kind = r.randrange(8)
        if kind < 2:
            return self.string()
        if kind < 4:
            return self.bounds(whole=kind == 2)
        if kind == 4:
            values = [self.value() for _ in range(r.randint(1, 4))]
            return {**({"type": r.choice(["string", "integer", "object"])} if r.random() < 0.3 else {}), "enum": values}
        if kind == 5:
            return {"const": self.value()}
        if kind == 6:
            return {"type": r.choice(["boolean", "null"])}
        return {"type": r.sample(["string", "integer", "null", "boolean", "array", "object", "number"], 2), "title": "two", "minimum": 3}

    def only(self, keyword):
        """The keyword with nothing beside it, not even a type: it binds values of its own kind only."""
        r = self.random
        if keyword == "$ref":
            return {"$ref": "#/$defs/node", "$defs": {"node": self.schema(1)}}
        made = {
            "type": lambda: r.choice(["string", "integer", "number", "boolean", "null", "array", "object", ["null", "string"]]),
            "enum": lambda: [self.value() for _ in range(r.randint(1, 4))],
            "const": self.value,
            "properties": lambda: {name: self.schema(1) for name in r.sample(WORDS, r.randint(0, 3))},
            "required": lambda: r.sample(WORDS, r.randint(0, 2)),
            "additionalProperties": lambda: self.schema(1),
            "items": lambda: self.schema(1),
            "prefixItems": lambda: [self.schema(1) for _ in range(r.randint(1, 3))],
            "pattern": lambda: r.choice(PATTERNS),
            "format": lambda: r.choice(FORMATS),
        }
        if keyword in ("anyOf", "allOf", "oneOf"):
            return {keyword: [self.schema(1) for _ in range(r.randint(1, 3))]}
        return {keyword: made.get(keyword, lambda: r.randint(0, 3))()}

    def draw(self):
        r = self.random
        if r.random() < 0.1:
            self.names = []
            return self.only(r.choice(KEYWORDS))
        self.names = r.sample(["node", "leaf", "a/b", "x%y"], 2) if r.random() < 0.35 else []
        escaped = [n.replace("~", "~0").replace("/", "~1").replace("%", "%25") for n in self.names]
        names, self.names = self.names, escaped
        root = self.schema(r.choice([0, 1, 2, 3]))
        if names and isinstance(root, dict):
            root["$defs"] = {name: self.schema(2) for name in names}
        return root
