"""A model that is cast after it was bound, and one that transformers binds (use_kernels=True, experts_implementation="hotswap") and that is
copied: what the package has no kernel for runs as its class does, with a row."""

import copy

import pytest
import test_instances as instances
import tiny
import torch

import hotswap

FAMILIES = ["llama", "gemma3_text", "qwen3_moe", "gpt_oss", "llama4_text", "phi3", "falcon_h1"]


def bound(m, by):
    if by == "use_kernels":
        m.set_use_kernels(True, hotswap.kernel_config())
    elif by == "experts":
        hotswap.register_experts()
        m.set_experts_implementation("hotswap")
    else:
        hotswap.kernelize(m, fused_linear_cross_entropy=by == "everything", attention=by == "everything")
    return m


def made(family):
    torch.manual_seed(0)
    m = tiny.model(family, **instances.SMALL.get(family, instances.ONE))
    if has_experts(family):
        m.set_experts_implementation("eager")  # torch's grouped product has no float64
    return m.train()


def has_experts(family):
    return family in ("qwen3_moe", "gpt_oss")


@pytest.mark.parametrize("by", ["kernelize", "everything", "use_kernels", "experts"])
@pytest.mark.parametrize("family", FAMILIES)
def test_double_runs_stock_and_back(family, by):
    if by == "experts" and not has_experts(family):
        return
    stock, ours = made(family), bound(made(family), by)
    before = instances.step(ours)
    expected = instances.step(stock.double())
    got = instances.step(ours.double())
    instances.same(got, expected, "double")
    if by != "everything":  # its attention is torch's other one
        assert torch.equal(got[0], expected[0]) and all(torch.equal(grad, expected[1][name]) for name, grad in got[1].items())
    rows = hotswap.report(ours).rows
    assert not any(row.package for row in rows if row.layer not in ("attention", "MultiScaleDeformableAttention"))
    assert by == "experts" or any("has no float64" in row.why for row in rows)
    instances.same(instances.step(ours.float()), before, "float32 again")
    assert by == "experts" or any(row.package for row in hotswap.report(ours).rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
def test_sixteen_bits_run_ours(family, dtype):
    stock, ours = made(family).to(dtype), bound(made(family), "everything").to(dtype)
    loss = [instances.step(m)[0].float() for m in (stock, ours)]
    tiny.close(loss[1], loss[0], 2e-3)
    assert any(row.package for row in hotswap.report(ours).rows)


@pytest.mark.parametrize("copied_by", [copy.deepcopy, instances.shallow, instances.replica], ids=lambda f: f.__name__)
@pytest.mark.parametrize("by", ["use_kernels", "experts"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt_oss"])
def test_copies_of_what_transformers_binds(family, by, copied_by):
    if by == "experts" and not has_experts(family):
        return
    stock, ours = made(family), bound(made(family), by)
    for mode in ("train", "eval", "train"):  # transformers binds again at each
        getattr(ours, mode)()
    other = copied_by(ours)
    assert instances.rows(other) == instances.rows(ours)
    instances.same(instances.step(instances.doubled(other)), instances.step(instances.doubled(copy.deepcopy(stock))), "the copy")


def test_pickled_experts():
    """In a fresh process, what is loaded still names the interface."""
    stock = made("qwen3_moe")
    if not instances.can_be_pickled(stock):
        pytest.skip("stock cannot be pickled")
    ours = instances.there_and_back(bound(made("qwen3_moe"), "experts"))
    instances.same(instances.step(ours), instances.step(stock), "pickled")
