"""Calls at the same time, and calls inside calls, on one model: each gives what it gives alone, and the model stays as it is.

HOTSWAP_THREAD_REQUESTS: requests of each of the 16 threads (default 4; before a release 200).
"""

import os
import random
import subprocess
import sys
import threading

import pytest
import test_vision
import tiny
import torch
from torch import nn
from transformers import LogitsProcessor, LogitsProcessorList, StaticCache, StoppingCriteria, StoppingCriteriaList

import hotswap
from hotswap.core.replacement import cache_name
from hotswap.generation import decode

THREADS, REQUESTS = 16, int(os.environ.get("HOTSWAP_THREAD_REQUESTS", "4"))
GREEDY = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
PROMPT = torch.tensor([[5, 9, 33, 21], [7, 61, 3, 8]])


@pytest.fixture(autouse=True)
def often():
    """Threads change places often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(work, count=THREADS):
    """Runs work(0), work(1), ... at the same time; the first error is raised here."""
    errors, ready = [], threading.Barrier(count)

    def run(k):
        try:
            ready.wait()
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def state(model):
    """What every module holds, by identity."""
    tables = ("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks")
    return {
        name: {k: id(v) for k, v in vars(m).items() if k not in tables} | {t: {k: id(v) for k, v in vars(m)[t].items()} for t in tables}
        for name, m in model.named_modules()
    }


def loss_request(model, data, **options):
    """The loss, and its gradient of one weight of each kind; not accumulated, so that threads share no .grad."""
    weights = [p for name, p in model.named_parameters() if "layers.0." in name or "lm_head" in name]

    def request():
        outputs = model(**data, **options)
        found = torch.autograd.grad(outputs.loss, weights, allow_unused=True)
        return [outputs.loss.detach(), *(g for g in found if g is not None)]

    return request


def generate_request(model, prompt, say, **options):
    return lambda: [say(model, prompt, **{**GREEDY, **options})]


def requests_of(model):
    """Losses by all ways, and generations by all ways."""
    made = []
    for seed in range(3):
        data = tiny.batch(rows=1 + seed % 2, columns=7 + seed, seed=seed)
        made += [loss_request(model, data, **options) for options in
                 ({}, dict(skip_logits=True), dict(label_smoothing=0.1), dict(skip_logits=True, lse_square_scale=0.1))]  # fmt: skip
        prompt = data["input_ids"][:, : 4 + seed]
        made += [generate_request(model, prompt, hotswap.generate), generate_request(model, prompt, type(model).generate)]
        made.append(generate_request(model, prompt, hotswap.generate, repetition_penalty=1.3))
    return made


@pytest.mark.parametrize("family, options", [
    ("llama", dict(fused_linear_cross_entropy=True)),
    ("qwen3", dict(fused_linear_cross_entropy=True, attention=True)),
    ("llava", dict(fused_linear_cross_entropy=True)),
    ("mixtral", dict(fused_linear_cross_entropy=True)),
], ids=["llama", "qwen3 and our attention", "llava", "mixtral"])  # fmt: skip
def test_sixteen_threads_give_what_one_gives(family, options):
    # transformers' generate() cannot say how even the routing is
    changes = dict(sliding_window=None, output_router_logits=False) if family == "mixtral" else {}
    model = (test_vision.model(family) if family == "llava" else tiny.model(family, **changes)).eval()
    hotswap.kernelize(model, **options)
    if family == "llava":
        data = tiny.batch()
        requests = [loss_request(model, tiny.batch(seed=seed), **given) for seed in range(3)
                    for given in ({}, dict(skip_logits=True), dict(label_smoothing=0.1), dict(skip_logits=True, label_smoothing=0.1))]  # fmt: skip
        requests.append(generate_request(model, data["input_ids"], type(model).generate))
    else:
        requests = requests_of(model)
    alone, before = [request() for request in requests], state(model)

    def work(k):
        chosen = random.Random(k)
        for _ in range(REQUESTS):
            i = chosen.randrange(len(requests))
            got = requests[i]()
            assert len(got) == len(alone[i]) and all(torch.equal(a, b) for a, b in zip(got, alone[i])), f"request {i}"

    in_threads(work)
    assert state(model) == before


class _Watch(StoppingCriteria):
    """Is asked between steps; changes nothing."""

    def __init__(self, look):
        self.look = look

    def __call__(self, ids, scores, **kwargs):
        self.look()
        return torch.zeros(len(ids), dtype=torch.bool)


def test_a_call_changes_nothing_on_the_model():
    model = hotswap.kernelize(tiny.model("llama").eval(), fused_linear_cross_entropy=True)
    before, looked = state(model), []

    def look(*_):
        looked.append(1)
        assert state(model) == before

    hotswap.generate(model, PROMPT, stopping_criteria=StoppingCriteriaList([_Watch(look)]), **GREEDY)
    assert len(looked) == GREEDY["max_new_tokens"]
    hook = model.model.norm.register_forward_hook(look)
    before = state(model)
    for options in ({}, dict(skip_logits=True), dict(label_smoothing=0.1)):
        model(**tiny.batch(), **options)
    hotswap.generate(model, PROMPT, **GREEDY)  # within the prompt and within steps
    assert len(looked) == 2 * GREEDY["max_new_tokens"] + 3
    hook.remove()


def test_a_loss_changes_nothing_on_a_model_whose_head_defers():
    model = hotswap.kernelize(test_vision.model("llava").train(), fused_linear_cross_entropy=True)
    looked = []

    def look(*_):
        looked.append(1)
        assert state(model) == before

    model.model.language_model.norm.register_forward_hook(look)
    before = state(model)
    assert model(**tiny.batch()).logits is None
    model(**tiny.batch(), skip_logits=False, label_smoothing=0.1)
    assert len(looked) == 2


class _Asks(LogitsProcessor):
    """Scores of the same model for another prompt, in one of four ways."""

    def __init__(self, model, way):
        self.model, self.way, self.cache = model, way, None

    def __call__(self, ids, scores):
        if self.way in ("hotswap.generate", "generate"):
            say = hotswap.generate if self.way == "hotswap.generate" else type(self.model).generate
            after = say(self.model, ids.flip(1), **{**GREEDY, "max_new_tokens": 3})[:, -1:]
            return scores.scatter_add(1, after, torch.full(after.shape, 0.2))
        new = ids[:, -1:]
        if self.cache is None:
            from transformers import DynamicCache

            config = self.model.config
            self.cache = StaticCache(config=config, max_cache_len=32) if self.way == "static" else DynamicCache(config=config)
            new = torch.cat([torch.full_like(new, 11), ids], 1)
        return scores - 0.5 * self.model(new, **{cache_name(self.model.forward): self.cache}).logits[:, -1]


@pytest.mark.parametrize("way", ["dynamic", "static", "generate", "hotswap.generate"])
def test_a_processor_may_call_the_model(way):
    model = tiny.model("llama").eval()
    asks = lambda: LogitsProcessorList([_Asks(model, way.removeprefix("hotswap."))])
    want = model.generate(PROMPT, logits_processor=asks(), **GREEDY)
    hotswap.kernelize(model)
    for say in (hotswap.generate, type(model).generate):
        assert torch.equal(say(model, PROMPT, logits_processor=LogitsProcessorList([_Asks(model, way)]), **GREEDY), want)


@pytest.mark.parametrize("where", ["lm_head", "model.embed_tokens", "model.layers.1.mlp", "model.norm"])
def test_a_hook_may_generate(where):
    """Within a step of the outer generation."""
    model, said = tiny.model("llama").eval(), []
    want, inner = model.generate(PROMPT, **GREEDY), model.generate(PROMPT.flip(1), **GREEDY)
    hotswap.kernelize(model)
    busy = threading.local()

    def hook(*_):
        if not getattr(busy, "is_on", False):
            busy.is_on = True
            said.append(hotswap.generate(model, PROMPT.flip(1), **GREEDY))
            busy.is_on = False

    model.get_submodule(where).register_forward_hook(hook)
    assert torch.equal(hotswap.generate(model, PROMPT, **GREEDY), want)
    assert len(said) == GREEDY["max_new_tokens"] and all(torch.equal(ids, inner) for ids in said)


@pytest.mark.parametrize("family", ["llama", "llava"])
@pytest.mark.parametrize("options", [{}, dict(label_smoothing=0.1)])
def test_a_hook_in_a_loss_may_call_the_model_and_its_head(family, options):
    make = lambda: (test_vision.model(family) if family == "llava" else tiny.model(family)).train()
    model, stock, data, seen = make(), make(), tiny.batch(), []
    hotswap.kernelize(model, fused_linear_cross_entropy=True)
    want, other = stock(**data).loss, stock(**tiny.batch(seed=5))
    layer = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and "DecoderLayer" in type(m[0]).__name__)[0]
    busy = threading.local()

    def hook(module, given, output):
        if getattr(busy, "is_on", False):
            return
        busy.is_on = True
        seen.append(model(**tiny.batch(seed=5)).loss)  # without logits
        seen.append(model(tiny.batch(seed=5)["input_ids"]).logits)
        seen.append(model.get_output_embeddings()(torch.ones(1, 32)))
        busy.is_on = False

    layer.register_forward_hook(hook)
    got = model(**data, **options)
    assert got.logits is None
    if not options:
        tiny.close(got.loss, want)
    else:
        assert not torch.equal(got.loss, want)
    tiny.close(seen[0], other.loss)
    tiny.close(seen[1], other.logits, 1e-5)
    assert seen[2].shape == (1, 97)


@pytest.mark.parametrize("kind", ["hook", "pre-hook", "forward", "compiled"])
@pytest.mark.parametrize("part", ["", "model", "model.layers.1", "model.layers.1.self_attn.v_proj", "model.layers.1.input_layernorm"])
def test_parts_that_have_to_be_called_are_called_and_said(kind, part):
    """In transformers' own loop and in ours the hook of a part is called as often."""
    model, count = hotswap.kernelize(tiny.model("llama").eval()), []
    module = model.get_submodule(part)
    if kind == "hook":
        module.register_forward_hook(lambda *_: count.append(1))
    elif kind == "pre-hook":
        module.register_forward_pre_hook(lambda *_: count.append(1))
    elif kind == "forward":
        module.forward = lambda *a, before=module.forward, **k: count.append(1) or before(*a, **k)
    else:
        module._compiled_call_impl = lambda *a, **k: count.append(1) or module._call_impl(*a, **k)
    want = model.generate(PROMPT, cache_implementation="static", disable_compile=True, **GREEDY)
    calls, made = len(count), decode.WholeLayers(model, 2)
    assert torch.equal(hotswap.generate(model, PROMPT, **GREEDY), want)
    assert len(count) == 2 * calls == 2 * GREEDY["max_new_tokens"]
    word = {"forward": "a forward of its own", "compiled": "a compiled forward"}.get(kind, "a hook")
    carried = {why: layers for why, layers in made.why.items() if why.endswith(f" has {word}")}  # a GPU's kernel may have reasons of its own
    assert list(carried.values()) == [["layers.1"] if "layers" in part else ["layers.0", "layers.1"]]


FRESH = """
import sys, threading
sys.setswitchinterval(1e-5)
import torch, transformers, hotswap, tiny
from hotswap.core import packages
names = ("norm", "mlp", "rotary", "loss", "decode", "linear", "activation", "moe")
models = [tiny.model("mixtral" if k % 2 else "llama") for k in range(8)]
done, ready = [], threading.Barrier(8)
def work(k):
    ready.wait()
    if sys.argv[1] == "load":
        for name in names[k:] + names[:k]:
            done.append((name, id(packages.load(name).layers), packages.package(name).id))
    else:
        hotswap.kernelize(models[k], fused_linear_cross_entropy=True)
        done.append((k % 2, repr(hotswap.report(models[k]).rows)))
threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == (64 if sys.argv[1] == "load" else 8), len(done)
kinds = set(done)
assert len(kinds) == (8 if sys.argv[1] == "load" else 2), kinds
assert all(" computes something else" not in words[1] and "LinearCrossEntropy" in words[1] for words in kinds if sys.argv[1] != "load"), kinds
"""


@pytest.mark.parametrize("what", ["load", "kernelize"])
def test_the_first_of_several_threads(what):
    """In a fresh process: all packages are loaded, or classes are asked, by all threads at once."""
    place = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    run = subprocess.run([sys.executable, "-c", FRESH, what], env=os.environ | {"PYTHONPATH": place}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
