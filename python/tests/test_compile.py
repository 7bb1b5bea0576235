"""torch.compile: one graph, the same values, our ops in it; in the cheap form for some families, in full behind
HOTSWAP_PYTHON_FULL=1."""

import copy
import os

import pytest
import torch
from tiny import FAMILIES, Calls, batch, close, gradients, model, same_gradients, twin

FULL = os.environ.get("HOTSWAP_PYTHON_FULL") == "1"
MOE = {"mixtral", "qwen3_moe", "gpt_oss", "olmoe", "qwen2_moe", "hunyuan_v1_moe"}  # stock experts break the graph: their loop depends on values

# Its stock layers do not compile on the CPU in torch 2.11: a view that the backward cannot make.
COMPILED = [family for family in FAMILIES if family != "qwen3_next"]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def check(family, fused, **options):
    stock = model(family, num_hidden_layers=1 if not FULL else 2).train()
    swapped = twin(stock, fused_linear_cross_entropy=fused)
    compiled = torch.compile(swapped, fullgraph=family not in MOE, **options)
    for columns in (12, 9) if options.get("dynamic") else (12,):
        data = batch(columns=columns) | {"use_cache": False}
        with Calls() as calls:
            got = compiled(**data)
            mine = gradients(swapped, got.loss)
        want = stock(**data)
        close(got.loss, want.loss, 1e-5)
        same_gradients(mine, gradients(stock, want.loss), 5e-5)
        assert calls.made["norm.rms_norm_fwd"] == calls.made["norm.rms_norm_bwd"] >= 3
        assert calls.made.get("rotary.rotary_bwd", 0) >= (family != "gemma4_text")
        assert calls.made["loss.linear_cross_entropy_fwd" if fused else "loss.cross_entropy_bwd"] == 1


@pytest.mark.parametrize(
    "family, fused", [(f, b) for f in COMPILED for b in (False, True)] if FULL else [("llama", True), ("gemma2", False)]
)
def test_one_graph(family, fused):
    check(family, fused, backend="aot_eager")


def test_a_head_that_does_not_learn():
    stock = model(num_hidden_layers=1).train()
    stock.lm_head.weight.requires_grad_(False)
    swapped = twin(stock, fused_linear_cross_entropy=True)
    compiled = torch.compile(swapped, fullgraph=True, backend="aot_eager")
    data = batch() | {"use_cache": False}
    with Calls() as calls:
        got = compiled(**data)
        mine = gradients(swapped, got.loss)
    want = stock(**data)
    close(got.loss, want.loss, 1e-5)
    same_gradients(mine, gradients(stock, want.loss), 5e-5)
    assert calls.made["loss.cross_entropy_fwd_"] == 1


def test_dynamic_shapes():
    check("llama", True, backend="aot_eager", dynamic=True)


@pytest.mark.skipif(not FULL, reason="HOTSWAP_PYTHON_FULL=1 runs it")
@pytest.mark.parametrize("family", COMPILED)
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
