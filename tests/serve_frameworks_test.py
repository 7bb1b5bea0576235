"""litellm, langchain-openai and lm-evaluation-harness against `hotswap serve`, with a tiny model of drawn weights,
or with the one that HOTSWAP_TEST_SERVE_MODEL names (see serve_clients_test.py).

    HOTSWAP_TEST_CLIENTS_PYTHON=DIR/bin/python serve_frameworks_test.py --build build --python .venv/bin/python

The packages are large and come from elsewhere: python3 -m venv DIR && DIR/bin/pip install litellm langchain-openai "lm_eval[api]" transformers.
Without that variable nothing is tested, and a line reports that (exit status 77); so does each package that is missing.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

VARIABLE = "HOTSWAP_TEST_CLIENTS_PYTHON"
MESSAGES = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}, "fine": {"type": "boolean"}},
    "required": ["kind", "count", "fine"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "set_answer", "description": "Sets it", "parameters": SCHEMA}}

# The sum of a continuation's logprobs and whether it is greedy, by transformers: of each [context, continuation].
SCORE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval(), PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
out = []
for context, continuation in json.loads(sys.argv[2]):
    first = len(tokenizer(context, add_special_tokens=False).input_ids)
    ids = torch.tensor([tokenizer(context + continuation, add_special_tokens=False).input_ids])
    with torch.no_grad():
        scores = model(ids).logits[0].log_softmax(-1)[first - 1 : -1]
    new = ids[0, first:]
    out.append([scores[range(len(new)), new].sum().item(), bool((scores.argmax(-1) == new).all())])
print(json.dumps(out))
"""


def check_answer(text: str) -> None:
    answer = json.loads(text)
    assert set(answer) == {"kind", "count", "fine"} and answer["kind"] in ("a", "b") and 0 <= answer["count"] <= 9, text


def expect_error(kind, message: str, call) -> None:
    try:
        call()
    except kind as error:
        assert message in str(error), error
        return
    raise AssertionError(f"expected {kind.__name__}; the request was answered")


def litellm_steps(url: str, _folder: str) -> None:
    import litellm

    litellm.suppress_debug_info = True
    server = dict(model="openai/tiny", api_base=url + "/v1", api_key="key", max_retries=0)
    call = dict(**server, messages=MESSAGES, temperature=0, max_tokens=12)
    open_end = dict(extra_body={"ignore_eos": True})

    whole = litellm.completion(**call, **open_end)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12, whole
    text = whole.choices[0].message.content
    chunks = list(litellm.completion(**call, **open_end, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text, chunks
    assert any(getattr(c, "usage", None) and c.usage.completion_tokens == 12 for c in chunks), chunks[-1]
    shown = litellm.completion(**call, **open_end, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(shown) == 12 and all(len(t.top_logprobs) == 2 and t.top_logprobs[0].logprob == t.logprob for t in shown), shown

    tools = dict(**{**call, "max_tokens": 200}, tools=[TOOL], seed=1, parallel_tool_calls=False)
    one = litellm.completion(**tools, tool_choice="required").choices[0]
    assert one.finish_reason == "tool_calls" and one.message.tool_calls[0].function.name == "set_answer", one
    check_answer(one.message.tool_calls[0].function.arguments)
    pieces = list(litellm.completion(**tools, tool_choice="required", stream=True))
    built = litellm.stream_chunk_builder(pieces).choices[0].message.tool_calls[0]
    assert built.function.name == "set_answer", built
    assert json.loads(built.function.arguments) == json.loads(one.message.tool_calls[0].function.arguments), built
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
    check_answer(litellm.completion(**{**call, "max_tokens": 200}, response_format=schema).choices[0].message.content)

    old = litellm.text_completion(**{**server, "model": "text-completion-openai/tiny"}, prompt="ab", max_tokens=4, logprobs=2, temperature=0)
    assert len(old.choices[0].logprobs.tokens) == old.usage.completion_tokens, old
    expect_error(litellm.BadRequestError, "temperature", lambda: litellm.completion(**{**call, "temperature": -1}))
    expect_error(litellm.NotFoundError, "does not exist", lambda: litellm.completion(**{**call, "model": "openai/other"}))
    expect_error(litellm.ContextWindowExceededError, "1024", lambda: litellm.completion(**{**call, "max_tokens": 2000}))
    expect_error(Exception, "embeddings", lambda: litellm.embedding(**server, input=["ab"]))


def langchain_steps(url: str, _folder: str) -> None:
    import asyncio

    import langchain_openai
    import openai
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    server = dict(base_url=url + "/v1", api_key="key", model="tiny", max_retries=0)
    chat = langchain_openai.ChatOpenAI(**server, temperature=0, max_tokens=12, extra_body={"ignore_eos": True}, stream_usage=True)
    prompt = [SystemMessage("Short."), HumanMessage("Hi")]
    whole = chat.invoke(prompt)
    assert whole.usage_metadata["output_tokens"] == 12 and whole.response_metadata["finish_reason"] == "length", whole
    merged = None
    for chunk in chat.stream(prompt):
        merged = chunk if merged is None else merged + chunk
    assert merged.content == whole.content and merged.usage_metadata["output_tokens"] == 12, merged
    assert asyncio.run(chat.ainvoke(prompt)).content == whole.content
    assert [m.content for m in chat.batch([prompt, prompt])] == [whole.content] * 2
    shown = chat.bind(logprobs=True, top_logprobs=2).invoke(prompt).response_metadata["logprobs"]["content"]
    assert len(shown) == 12, shown

    calling = langchain_openai.ChatOpenAI(**server, temperature=0, max_tokens=200, seed=1)
    with_tools = calling.bind_tools([TOOL], tool_choice="any", parallel_tool_calls=False)
    message = with_tools.invoke(prompt)
    assert message.tool_calls[0]["name"] == "set_answer", message
    check_answer(json.dumps(message.tool_calls[0]["args"]))
    merged = None
    for chunk in with_tools.stream(prompt):
        merged = chunk if merged is None else merged + chunk
    assert merged.tool_calls[0]["args"] == message.tool_calls[0]["args"], merged
    history = [*prompt, message, ToolMessage("done", tool_call_id=message.tool_calls[0]["id"]), HumanMessage("And now?")]
    assert isinstance(with_tools.invoke(history), AIMessage)
    titled = {**SCHEMA, "title": "answer"}
    for method in ("json_schema", "function_calling"):
        check_answer(json.dumps(calling.with_structured_output(titled, method=method).invoke(prompt)))

    text = langchain_openai.OpenAI(**server, temperature=0, max_tokens=6).invoke("ab")
    assert isinstance(text, str), text
    expect_error(openai.BadRequestError, "temperature", lambda: chat.bind(temperature=-1).invoke(prompt))
    expect_error(openai.NotFoundError, "does not exist", lambda: chat.bind(model="other").invoke(prompt))
    expect_error(openai.BadRequestError, "1024", lambda: chat.bind(max_tokens=2000).invoke(prompt))
    embeddings = langchain_openai.OpenAIEmbeddings(**server, check_embedding_ctx_length=False)
    expect_error(openai.APIStatusError, "embeddings", lambda: embeddings.embed_query("ab"))


def evaluate(folder: Path, name: str, model: str, task: str, arguments: str, *more: str) -> list[dict]:
    """The samples of a task of the folder that lm-evaluation-harness has run, written to folder / name."""
    output = folder / name
    command = [sys.executable, "-m", "lm_eval", "run", "--model", model, "--tasks", task, "--include_path", folder, "--model_args", arguments,
               "--output_path", output, "--log_samples", *more]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": "key"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    samples = next(output.rglob("samples_*.jsonl"))
    return [json.loads(line) for line in samples.read_text().splitlines()]


def lm_eval_steps(url: str, model: str) -> None:
    rows = [{"q": "one two", "a": [" three", " 9"], "right": 0}, {"q": "The cat", "a": [" sat down", "s", " x"], "right": 2}]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder}/data.jsonl\ntest_split: test\n"
        (folder / "choices.yaml").write_text(
            f'task: choices\n{data}output_type: multiple_choice\ndoc_to_text: "{{{{q}}}}"\ndoc_to_choice: "{{{{a}}}}"\ndoc_to_target: right\n'
            'target_delimiter: ""\nmetric_list:\n  - metric: acc\n')  # fmt: skip
        (folder / "texts.yaml").write_text(
            f'task: texts\n{data}output_type: generate_until\ndoc_to_text: "{{{{q}}}}"\ndoc_to_target: "{{{{a[0]}}}}"\n'
            "generation_kwargs:\n  until: [\"~~~\"]\n  max_gen_toks: 8\nmetric_list:\n  - metric: bypass\n")  # fmt: skip
        arguments = f"model=tiny,base_url={url}/v1/completions,tokenizer={model},tokenizer_backend=huggingface,num_concurrent=2,max_length=1024"
        pairs = [[row["q"], answer] for row in rows for answer in row["a"]]
        expected = json.loads(subprocess.run([os.environ["HOTSWAP_SCORER"], "-c", SCORE, model, json.dumps(pairs)],
                                             capture_output=True, text=True, check=True).stdout.splitlines()[-1])  # fmt: skip
        for tokenized in ("True", "False"):
            samples = evaluate(folder, tokenized, "local-completions", "choices", f"{arguments},tokenized_requests={tokenized}")
            got = [resp[0] for sample in sorted(samples, key=lambda s: s["doc_id"]) for resp in sample["resps"]]
            assert len(got) == len(expected), samples
            for (value, greedy), (right, right_greedy) in zip(got, expected):
                assert abs(float(value) - right) < 1e-3 and str(greedy) == str(right_greedy), (got, expected)
        chat = f"model=tiny,base_url={url}/v1/chat/completions,max_length=1024"
        samples = evaluate(folder, "chat", "local-chat-completions", "texts", chat, "--apply_chat_template")
        assert len(samples) == len(rows) and all(isinstance(s["resps"][0][0], str) for s in samples), samples


STEPS = {"litellm": litellm_steps, "langchain-openai": langchain_steps, "lm_eval": lm_eval_steps}


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def steps(url: str, model: str) -> None:
    """Runs in the clients' environment."""
    tested = 0
    for package, test in STEPS.items():
        version = installed(package)
        if version is None:
            print(f"not tested: {package} is not installed")
            continue
        test(url, model)
        print(f"{package} {version}: tested")
        tested += 1
    sys.exit(0 if tested else 77)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--steps", nargs=2, help="the address of a server, the model's folder; in the clients' environment")
    arguments = parser.parse_args()
    if arguments.steps:
        return steps(*arguments.steps)
    clients = os.environ.get(VARIABLE)
    if not clients:
        print(f"not tested: {VARIABLE} names no Python with litellm, langchain-openai and lm_eval")
        sys.exit(77)
    from serve_clients_test import SERVED, Server, model_to_serve

    with tempfile.TemporaryDirectory() as folder:
        model = model_to_serve(arguments.python, folder)
        server = Server(arguments.build.resolve(), model, *SERVED, "--dtype", "float32")  # as the scores
        environment = {**os.environ, "HOTSWAP_SCORER": str(arguments.python.absolute()), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run([clients, __file__, "--steps", server.url, model], env=environment)
        server.expect_idle()
        server.end()
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
