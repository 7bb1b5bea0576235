"""Random JSON schemas against `hotswap serve` with a tiny model of drawn weights: each answer that ended is valid by Python's
jsonschema, or the schema was refused by name.

    structured_output_test.py --build build --python .venv/bin/python

HOTSWAP_TEST_SCHEMAS is how many (150 where it is not set), HOTSWAP_TEST_SEED where they begin. --python has torch, transformers,
tokenizers and jsonschema. Where xgrammar is not installed, nothing is tested, and a line reports that (exit status 77).
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from random_schemas import KEYWORDS, Schemas, keywords_of
from serve_clients_test import MAKE_MODEL, Server

TOKENS = 500
REFUSAL = re.compile(r"got '[\w$]+': |a pattern of characters, classes|its branches|no value fits|some value fits")


def post(url: str, body: dict) -> tuple[int, dict]:
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def outcome_of(url: str, seed: int, schema: object) -> tuple[str, str | None]:
    """-> what became of it, and the JSON that came, if it ended"""
    # Ends, closing marks and quotes are made likely: drawn weights would go on for long.
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": TOKENS, "seed": seed, "temperature": 1}
    body["logit_bias"] = {"END": 6, "QUOTE": 4, "BRACE": 6, "BRACKET": 6}
    body["logit_bias"] = {str(BIASED[name]): bias for name, bias in body["logit_bias"].items()}
    as_tool = seed % 3 == 0 and isinstance(schema, dict) and schema.get("type") == "object"
    if as_tool:
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        body["tool_choice"] = {"type": "function", "function": {"name": "f"}}
    else:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    status, answer = post(url, body)
    if status == 400:
        assert answer["error"]["param"] == ("tools" if as_tool else "response_format"), answer
        assert REFUSAL.search(answer["error"]["message"]), answer
        return "refused", None
    assert status == 200, answer
    (choice,) = answer["choices"]
    assert "structured_output_error" not in choice, choice
    if choice["finish_reason"] == "length":
        return "cut by max_tokens", None
    if as_tool:
        (call,) = choice["message"]["tool_calls"]
        return "called", call["function"]["arguments"]
    return "answered", choice["message"]["content"]


BIASED: dict[str, int] = {}


def find_biased(url: str) -> None:
    """Ids of the tokens that end things."""
    for name, text in [("QUOTE", '"'), ("BRACE", "}"), ("BRACKET", "]"), ("END", "<end>")]:
        body = json.dumps({"prompt": text}).encode()
        request = urllib.request.Request(url + "/tokenize", body, {"Content-Type": "application/json"})
        (BIASED[name],) = json.load(urllib.request.urlopen(request))["tokens"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--model", type=Path, help="a model that was made before")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    if not (build / "grammar/xgrammar/libxgrammar_bindings.so").exists():
        print("not tested: no xgrammar in", build / "grammar")
        sys.exit(77)
    import importlib.metadata

    import jsonschema

    count, first = int(os.environ.get("HOTSWAP_TEST_SCHEMAS", "150")), int(os.environ.get("HOTSWAP_TEST_SEED", "0"))
    with tempfile.TemporaryDirectory() as folder:
        make = MAKE_MODEL.replace("max_position_embeddings=1024", "max_position_embeddings=4096")
        subprocess.run([arguments.python, "-c", make, folder], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        server = Server(build, folder, "--served-model-name", "tiny")
        find_biased(server.url)
        seeds = range(first, first + count)
        schemas = {seed: Schemas(seed).draw() for seed in seeds}
        outcomes: collections.Counter[str] = collections.Counter()
        answered: collections.Counter[str] = collections.Counter()  # keywords of schemas whose answer ended
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for seed, (outcome, text) in zip(seeds, pool.map(lambda seed: outcome_of(server.url, seed, schemas[seed]), seeds)):
                outcomes[outcome] += 1
                if text is not None:
                    answered.update(keywords_of(schemas[seed]))
                    try:
                        jsonschema.Draft202012Validator(schemas[seed]).validate(json.loads(text))
                    except Exception as error:
                        raise AssertionError(f"seed {seed}: {text!r} for {json.dumps(schemas[seed])}") from error
        print(f"seeds {first} to {first + count - 1}: {dict(outcomes)}; all that ended are valid by jsonschema {importlib.metadata.version('jsonschema')}")
        assert outcomes["answered"] + outcomes["called"] > count / 2, outcomes
        assert outcomes["called"] > count / 100, outcomes
        print("schemas with each keyword among those:", ", ".join(f"{keyword} {answered[keyword]}" for keyword in KEYWORDS))
        assert count < 150 or all(answered[keyword] for keyword in KEYWORDS), answered
        metrics = urllib.request.urlopen(server.url + "/metrics").read().decode()
        assert re.search(r"structured_output_invalid_total\{.*\} 0\n", metrics), metrics
        server.expect_idle()
        server.end()


if __name__ == "__main__":
    main()
