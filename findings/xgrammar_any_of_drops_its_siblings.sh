#!/usr/bin/env bash
# xgrammar 0.2.9: where a JSON schema has anyOf, the keywords beside it (type, properties, required) are dropped without
# an error or a warning, and so is a name in `required` that `properties` does not list, although each of these keywords
# is served by itself. JSON Schema, and the jsonschema package, require all of them to hold.
# Natural guess: an answer that the matcher accepts to its end validates against the schema.
# Seen: a bare 3 is accepted for an object; {"a": 1} is accepted though "b" is required.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check xgrammar==0.2.9 torch==2.11.0 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PY'
import json
import jsonschema
import xgrammar

FIRST, END = 32, 95  # one token a printable character, then the end
tokens = xgrammar.TokenizerInfo([chr(c) for c in range(FIRST, FIRST + END)] + ["<end>"], stop_token_ids=[END])
compiler = xgrammar.GrammarCompiler(tokens)

def accepted(schema, text):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
    return all(matcher.accept_token(ord(c) - FIRST) for c in text) and matcher.accept_token(END)

def valid(schema, text):
    return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))

thing = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
branches = {**thing, "anyOf": [{"minProperties": 1}, {"type": "integer"}]}
unlisted = {**thing, "required": ["a", "b"]}
cases = [(thing, "3"), (branches, "3"), (unlisted, '{"a": 1}')]
seen = [(accepted(*case), valid(*case)) for case in cases]
print(seen)
assert seen == [(False, False), (True, False), (True, False)], seen
PY
