"""hotswap.generate replays a CUDA graph on a GPU, which calls no Python: what a model carries that must be called at each step is found
before anything is captured, at each call. Where there is no GPU the decision is what can be tested."""

import warnings

import pytest
import test_instances as instances
import tiny
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import hotswap
from hotswap.generation import decode, loop as generation


def compiled(module, log):
    module._compiled_call_impl = lambda *args, **kwargs: module._call_impl(*args, **kwargs)


WORDS = {
    instances.forward_hook: "a hook", instances.keyword_hook: "a hook", instances.pre_hook: "a hook", compiled: "a compiled forward",
    instances.own_forward: "a forward of its own", instances.parametrized: "a parametrized weight",
}  # fmt: skip


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_what_a_part_carries_keeps_steps_from_being_captured(family, kind):
    for name in instances.parts_of(instances.made(family)):
        m = hotswap.kernelize(instances.fresh(family))
        assert decode.why_not_captured(m) == ""
        part = m.get_submodule(name)
        if kind is instances.parametrized and not list(part.parameters(recurse=False)):
            continue
        kind(part, [])  # between two calls
        assert decode.why_not_captured(m) == f"{name or type(m).__name__} has {WORDS[kind]}"
        with pytest.warns(UserWarning, match=f"steps are not captured in a CUDA graph: .* has {WORDS[kind]}"):
            assert not generation._captures(m)
        report = hotswap.report(m)
        assert report.why_not_captured.endswith(WORDS[kind]) and report.why_not_captured in str(report)


@pytest.mark.parametrize("register", [register_module_forward_hook, register_module_forward_pre_hook], ids=lambda f: f.__name__)
def test_hooks_on_every_module(register):
    m = hotswap.kernelize(tiny.model("llama"))
    hook = register(lambda *_: None)
    try:
        assert decode.why_not_captured(m) == "there are hooks on every module"
    finally:
        hook.remove()
    assert decode.why_not_captured(m) == ""


def test_what_needs_no_call_does_not():
    """Hooks of backward, adapters, our own forwards and kernels'."""
    from peft import LoraConfig, get_peft_model

    m = hotswap.kernelize(tiny.model("llama"), fused_linear_cross_entropy=True, attention=True)
    m.model.norm.register_full_backward_hook(lambda *_: None)
    m.set_use_kernels(True, hotswap.kernel_config())
    adapted = get_peft_model(m, LoraConfig(r=2, target_modules=["q_proj", "lm_head"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode.why_not_captured(adapted.get_base_model()) == "" and generation._captures(adapted.get_base_model())
    report = hotswap.report(m)
    assert report.why_not_captured == "" and "CUDA graph" not in str(report)


def test_the_length_of_the_text_is_read_on_the_host():
    rope = dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0)
    assert decode.why_not_captured(tiny.model("llama", rope_parameters=rope)) == "model.rotary_emb reads the length of the text on the host"


def test_layers_on_two_devices():
    m = tiny.model("llama")
    m.model.norm.to("meta")
    assert decode.why_not_captured(m) == f"its layers are on {torch.get_default_device().type}, meta"
