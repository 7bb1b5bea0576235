"""torch.compile: one graph, the same values, our ops in it, through train() and eval(); with aot_eager for the best known
families, with inductor and for every family behind HOTSWAP_PYTHON_FULL=1."""

import copy
import os

import pytest
import torch
from tiny import FAMILIES, NAMED, Calls, batch, close, model, same_step, twin

FULL = os.environ.get("HOTSWAP_PYTHON_FULL") == "1"
STOCK_ROTARY = ("gemma4_text", "deepseek_v4")  # they turn queries and keys apart
# What records their routers, and the auxiliary loss, break the graph.
MOE = set("mixtral qwen3_moe gpt_oss olmoe qwen2_moe hunyuan_v1_moe deepseek_v2 deepseek_v3 deepseek_v4".split())

pytestmark = pytest.mark.filterwarnings("ignore:Error detected in")  # dynamo, trying the stock experts

# Its stock layers do not compile on the CPU in torch 2.11: a view that the backward cannot make.
COMPILED = [family for family in FAMILIES if family not in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def check(family, fused, **options):
    layers = 2 if FULL or family == "qwen3_moe" else 1  # of its layers every other one has experts
    stock = model(family, num_hidden_layers=layers)
    swapped = twin(stock, fused_linear_cross_entropy=fused)
    compiled = torch.compile(swapped, fullgraph=family not in MOE, **options)
    for columns in (12, 9) if options.get("dynamic") else (12,):
        data = batch(columns=columns) | {"use_cache": False}
        for training in (True,) if options.get("dynamic") else (True, False, True):
            stock.train(training), swapped.train(training)
            if training:
                _, made = same_step(swapped, stock, data, 1e-5, 5e-5, run=compiled)
                assert made.get("norm.rms_norm_fwd") == made.get("norm.rms_norm_bwd")
                assert made.get("rotary.rotary_bwd", 0) >= (family not in STOCK_ROTARY)
                assert made["loss.linear_cross_entropy_fwd" if fused else "loss.cross_entropy_bwd"] == 1
            else:
                with torch.no_grad(), Calls() as calls:
                    got = compiled(**data)
                with torch.no_grad():
                    want = stock(**data)
                close(got.loss, want.loss, 1e-5)
                close(got.logits, want.logits, 1e-5)
                made = calls.made
            if family != "nemotron":  # its norms are another kind
                assert made["norm.rms_norm_fwd" if training else "norm.rms_norm"] >= 3
            assert made.get("rotary.rotary", 0) >= (family not in STOCK_ROTARY)


# each with one of the two losses
CHEAP = [(family, i % 2 == 0) for i, family in enumerate(NAMED)]


@pytest.mark.parametrize("family, fused", [(f, b) for f in COMPILED for b in (False, True)] if FULL else CHEAP)
def test_one_graph(family, fused):
    check(family, fused, backend="aot_eager")


def test_a_head_that_does_not_learn():
    stock = model(num_hidden_layers=1).train()
    stock.lm_head.weight.requires_grad_(False)
    swapped = twin(stock, fused_linear_cross_entropy=True)
    compiled = torch.compile(swapped, fullgraph=True, backend="aot_eager")
    _, made = same_step(swapped, stock, batch() | {"use_cache": False}, 1e-5, 5e-5, run=compiled)
    assert made["loss.cross_entropy_fwd_"] == 1


def test_dynamic_shapes():
    check("llama", True, backend="aot_eager", dynamic=True)


@pytest.mark.skipif(not FULL, reason="HOTSWAP_PYTHON_FULL=1 runs it")
@pytest.mark.parametrize("family", [f for f in COMPILED if f != "falcon_h1"])  # inductor's code for its stock layers crashes
def test_inductor(family):
    check(family, True)


@pytest.mark.skipif(not FULL, reason="HOTSWAP_PYTHON_FULL=1 runs it")
def test_inductor_in_evaluation_and_dynamic():
    check("llama", False, dynamic=True)
    stock = model().eval()
    swapped = twin(stock)
    with torch.no_grad():
        got = torch.compile(copy.deepcopy(swapped), fullgraph=True, mode="reduce-overhead")(**batch(), use_cache=False)
        close(got.logits, stock(**batch()).logits, 1e-5)
