"""OpenAI's own client against `hotswap serve`, with a tiny model of drawn weights, or with the one that HOTSWAP_TEST_SERVE_MODEL
names: a folder whose chat template shows tools, or a GGUF file, of which transformers makes such a folder first.

    serve_clients_test.py --build build --python .venv/bin/python

The client comes by pip into an environment below build/peers, which is kept for the next run; --python has torch, transformers
and tokenizers for the model. Where pip finds no index, nothing is tested, and a line reports that (exit status 77).
"""

import argparse
import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

CLIENT = "openai==3.57.0"
MODEL = "HOTSWAP_TEST_SERVE_MODEL"
SERVED = ("--served-model-name", "tiny", "--max-model-len", "1024")  # as long as the tiny model; what is longer must be refused

MAKE_MODEL = """
import sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
fast.chat_template = "{% if tools %}<tool_call> {{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}"
fast.save_pretrained(sys.argv[1])
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(vocab_size=len(fast), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.3,
    eos_token_id=len(fast) - 1)).save_pretrained(sys.argv[1])
"""


def environment(build: Path, package: str) -> Path | None:
    """The Python of an environment that has the package; None where it cannot be had."""
    folder = build / "peers" / package.replace("==", "-")
    python = folder / "bin/python"
    if (folder / "complete").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", package], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-500:])
        return None
    (folder / "complete").touch()
    return python


# The tokenizer of a GGUF file into a folder. Where its chat template has no word of tools they are shown before the messages.
READ_TOKENIZER = """
import sys
from pathlib import Path
from transformers import AutoTokenizer
file = Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
if "tools" not in tokenizer.chat_template:
    tokenizer.chat_template = "{% if tools %}<tool_call> {{ tools | tojson }}\\n{% endif %}" + tokenizer.chat_template
tokenizer.save_pretrained(sys.argv[2])
"""


def model_to_serve(python: Path, folder: str) -> str:
    """The folder that the environment names, or the given one, with a tiny model or what a GGUF file has."""
    named = os.environ.get(MODEL, "")
    print("model:", named or "a tiny one", flush=True)
    if named and not named.endswith(".gguf"):
        return named
    to_folder = Path(__file__).parents[1] / "bench/gguf_folder.py"
    scripts = [[to_folder, named], ["-c", READ_TOKENIZER, named]] if named else [["-c", MAKE_MODEL]]
    for script in scripts:
        subprocess.run([python, *script, folder], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return folder


class Server:
    """`hotswap serve` on a free port."""

    def __init__(self, build: Path, *arguments: str):
        command = [build / "bin/hotswap", "serve", *arguments, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # a failed test leaves no server
        line = self.process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), (line, self.process.communicate()[1])
        self.url = line.split()[-1]

    def pages(self) -> int:
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        return int(next(row for row in text.splitlines() if row.startswith("hotswap:kv_pages_in_use")).split()[-1])

    def expect_idle(self) -> None:
        for _ in range(200):
            if self.pages() == 0:
                return
            time.sleep(0.02)
        raise AssertionError("pages of keys and values are still in use though nothing runs")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.process.stderr.read()


def fits(kind, *answers) -> None:
    """The client takes any JSON; here each field that a type of its demands must be there, and be of its type."""
    from pydantic import TypeAdapter

    for answer in answers:
        TypeAdapter(kind).validate_python(answer.to_dict(mode="json"))


def ends_while_it_loads(build: Path) -> None:
    """A model of a Hub that takes the connection and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as hub, tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}", "HF_HOME": home, "HF_HUB_OFFLINE": "0"}
        process = subprocess.Popen([build / "bin/hotswap", "serve", "org/name", "--port", "0"], stderr=subprocess.PIPE, env=environment)
        try:
            hub.settimeout(60)
            with hub.accept()[0]:
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == -signal.SIGTERM, process.stderr.read()
        finally:
            process.kill()
    print("SIGTERM ends it while its model is being loaded")


def structured(client, name: str) -> None:
    """Schemas, parse() and tools; nothing where the server has no grammar library."""
    import json
    from typing import Literal

    import openai
    from pydantic import BaseModel

    class Answer(BaseModel):
        kind: Literal["a", "b"]
        count: int
        fine: bool

    call = dict(model=name, messages=[{"role": "user", "content": "Hi"}], seed=1, max_tokens=200)
    try:
        parsed = client.chat.completions.parse(**call, response_format=Answer).choices[0].message.parsed
    except openai.InternalServerError as error:
        assert error.status_code == 501 and "xgrammar" in error.body["message"], error.body
        print("not tested: structured output, because xgrammar is missing")
        return
    assert isinstance(parsed, Answer)
    schema = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": Answer.model_json_schema()}}
    chunks = client.chat.completions.create(**call, response_format=schema, stream=True)
    assert Answer.model_validate_json("".join(c.choices[0].delta.content or "" for c in chunks)) == parsed

    tool = {"type": "function", "function": {"name": "set_answer", "parameters": Answer.model_json_schema()}}
    choice = {"type": "function", "function": {"name": "set_answer"}}
    message = client.chat.completions.create(**call, tools=[tool], tool_choice=choice).choices[0].message
    assert message.content is None and message.tool_calls[0].function.name == "set_answer", message
    made = Answer.model_validate_json(message.tool_calls[0].function.arguments)
    with client.chat.completions.stream(**call, tools=[openai.pydantic_function_tool(Answer)], tool_choice="required",
                                        parallel_tool_calls=False) as events:  # fmt: skip
        final = events.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and isinstance(final.message.tool_calls[0].function.parsed_arguments, Answer), final
    pieces = [c.choices[0].delta.tool_calls[0] for c in client.chat.completions.create(**call, tools=[tool], tool_choice=choice, stream=True)
              if c.choices[0].delta.tool_calls]  # fmt: skip
    assert pieces[0].id and pieces[0].function.name == "set_answer" and not any(p.id for p in pieces[1:]), pieces
    assert Answer(**json.loads("".join(p.function.arguments for p in pieces))) == made
    structured_responses(client, name)
    print("json_schema, parse(), tools, whole and as a stream")


def responses(client, name: str) -> None:
    """/v1/responses: the text of the chat that it stands for, whole and as events."""
    import openai

    call = dict(model=name, instructions="Short.", input="Hi", temperature=0, max_output_tokens=16, extra_body={"ignore_eos": True})
    messages = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Hi"}]
    chat = client.chat.completions.create(model=name, messages=messages, temperature=0, max_tokens=16, extra_body={"ignore_eos": True})
    whole = client.responses.create(**call)
    assert whole.output_text == chat.choices[0].message.content, whole
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens" and not whole.store, whole
    assert whole.usage.output_tokens == 16 and whole.usage.input_tokens == chat.usage.prompt_tokens, whole.usage
    events = list(client.responses.create(**call, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    fits(openai.types.responses.Response, whole)
    fits(openai.types.responses.ResponseStreamEvent, *events)
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"], kinds
    assert kinds[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"], kinds
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text == events[-1].response.output_text
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    assert client.responses.create(**{**call, "input": parts}).output_text == whole.output_text
    longer = [*parts, *[item.model_dump() for item in whole.output], {"role": "user", "content": "And?"}]
    assert client.responses.create(**{**call, "input": longer}).usage.input_tokens > whole.usage.input_tokens
    for change, field in [
        (dict(previous_response_id="resp_1"), "previous_response_id"),
        (dict(background=True), "background"),
        (dict(input=[{"type": "item_reference", "id": "1"}]), "input[0]"),
        (dict(tools=[{"type": "web_search"}]), "tools"),
        (dict(max_output_tokens=2000), "input"),
    ]:
        try:
            client.responses.create(**{**call, **change})
            raise AssertionError(f"{change} was answered")
        except openai.BadRequestError as error:
            assert error.param == field, error.body
    print("responses, whole and as events")


def structured_responses(client, name: str) -> None:
    import json

    import openai

    tool = {"type": "function", "name": "set", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}
    call = dict(model=name, input="Hi", temperature=0, max_output_tokens=200)
    forced = dict(tools=[tool], tool_choice={"type": "function", "name": "set"})
    whole = client.responses.create(**call, **forced)
    assert [item.type for item in whole.output] == ["function_call"] and type(json.loads(whole.output[0].arguments)["a"]) is bool, whole
    with client.responses.stream(**call, **forced) as events:
        final = events.get_final_response()
    assert final.output[0].arguments == whole.output[0].arguments and final.status == "completed", final
    fits(openai.types.responses.Response, whole)
    fits(openai.types.responses.ResponseStreamEvent, *client.responses.create(**call, **forced, stream=True))
    history = [{"role": "user", "content": "Hi"}, whole.output[0].model_dump(),
               {"type": "function_call_output", "call_id": whole.output[0].call_id, "output": "done"}]  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "n", "schema": tool["parameters"]}}
    assert type(json.loads(client.responses.create(**{**call, "input": history}, text=form).output_text)["a"]) is bool
    print("responses: tools and json_schema")


def steps(url: str) -> None:
    """Runs in the client's environment."""
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="key", max_retries=0)
    name = client.models.list().data[0].id
    call = dict(model=name, messages=[{"role": "user", "content": "Hi"}], extra_body={"ignore_eos": True}, max_tokens=16)

    whole = client.chat.completions.create(**call, temperature=0)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 16, whole
    text = whole.choices[0].message.content
    chunks = list(client.chat.completions.create(**call, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage == whole.usage, chunks[-1]
    fits(openai.types.chat.ChatCompletion, whole)
    fits(openai.types.chat.ChatCompletionChunk, *chunks)
    print(f"openai {openai.__version__}: chat, whole and as a stream")

    drawn = [client.chat.completions.create(**call, temperature=1, seed=5, n=2) for _ in range(2)]
    assert [c.message.content for c in drawn[0].choices] == [c.message.content for c in drawn[1].choices]
    assert drawn[0].choices[0].message.content != drawn[0].choices[1].message.content
    shown = client.chat.completions.create(**call, temperature=0, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(shown) == 16 and all(t.top_logprobs[0].logprob == t.logprob for t in shown)
    print("n, seed, logprobs")

    ids = client.completions.create(model=name, prompt=[1, 2, 3], max_tokens=4, temperature=0, logprobs=2)
    assert len(ids.choices[0].logprobs.tokens) == ids.usage.completion_tokens
    scored = client.completions.create(model=name, prompt="hello", max_tokens=0, echo=True, logprobs=1)
    assert scored.choices[0].text == "hello" and scored.choices[0].logprobs.token_logprobs[0] is None
    print("completions of ids, scores of a prompt")

    for change, kind in [
        (dict(temperature=-1), openai.BadRequestError),
        (dict(model="other"), openai.NotFoundError),
        (dict(max_tokens=2000), openai.BadRequestError),
        (dict(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}), openai.BadRequestError),
        (dict(tools=[{"type": "search"}]), openai.BadRequestError),
    ]:
        try:
            client.chat.completions.create(**{**call, **change})
            raise AssertionError(f"{change} was answered")
        except kind as error:
            assert error.body["message"].startswith(("expected", "The model", "This model")), error.body
    print("errors")

    responses(client, name)
    structured(client, name)
    stream = client.chat.completions.create(**{**call, "max_tokens": 200}, stream=True)
    next(iter(stream))
    stream.close()
    print("a stream that is closed early")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--steps", help="the address of a server; in the client's environment")
    arguments = parser.parse_args()
    if arguments.steps:
        return steps(arguments.steps)
    build = arguments.build.resolve()
    ends_while_it_loads(build)
    client = environment(build, CLIENT)
    if client is None:
        print(f"not tested: pip cannot install {CLIENT}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(build, model_to_serve(arguments.python, folder), *SERVED)
        subprocess.run([client, __file__, "--steps", server.url], check=True)
        server.expect_idle()
        server.end()
        print("SIGTERM: exit status 0")


if __name__ == "__main__":
    main()
