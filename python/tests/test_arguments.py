"""Every parameter of every public function, given what is not of its kind: an error that names what was expected and what came."""

import inspect

import pytest
import torch
from tiny import model

import hotswap

IDS = torch.tensor([[3, 4, 5]])
FUNCTIONS = {name: getattr(hotswap, name) for name in hotswap._WHERE if inspect.isfunction(getattr(hotswap, name))}
FUNCTIONS |= {"_apply_liger_kernel_to_instance": hotswap.liger._apply_liger_kernel_to_instance}
FUNCTIONS |= {f"apply_liger_kernel_to_{family}": getattr(hotswap.liger, f"apply_liger_kernel_to_{family}") for family in hotswap.liger.FAMILIES}
# Of a parameter: values of no kind that it takes.
NO_FLAG = [3, "no", 0.0, [], None]
WRONG = {
    "model": ["llama", 3, [], object()],
    "kernel_config": [3, "norm", ["RMSNorm"], object()],
    "kernel_mapping": [3, "norm", ["RMSNorm"], object()],
    "mode": [3, "fast", "", "inference|training", "fallback", object()],
    "inherit_mapping": ["no", 3],
    "name": [3, None, "", []],
    "model_type": [3, None, "", []],
    "input_ids": [3, "text", [3, 4]],
    "streamer": [3, "text", object()],
    "hotswap_streamer": [3, "text", object()],
    "tokenizer": [3, "text", object()],
    "logits_processor": [3, None, object()],
    "stopping_criteria": [3, None, object()],
    "generation_config": [3, None, object()],
}
FLAGS = {"strict", "allow_all_kernels", "use_local_kernel", "shadow", "hotswap_cache"}


def right(name, function):
    """Values that it takes, but for optional ones."""
    known = dict(model=model(), name="norm", model_type="llama", input_ids=IDS, logits_processor=[], stopping_criteria=[],
                 generation_config=transformers_config())  # fmt: skip
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return {p.name: known[p.name] for p in needed}


def transformers_config():
    from transformers import GenerationConfig

    return GenerationConfig()


def wrong_of(function):
    """(parameter, value) of each that is to be refused."""
    found = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            if p.name == "options":
                found += [("rms_norm", value) for value in NO_FLAG] + [("no_such_option", True)]
                found += [("attention", value) for value in (3, None, "norm", "a/b:c:d")] if function.__name__.startswith("kerne") else []
        elif p.name in WRONG:
            found += [(p.name, value) for value in WRONG[p.name]]
        else:
            assert p.name in FLAGS or isinstance(p.default, bool), f"{function.__name__}: no wrong values are known for {p.name}"
            found += [(p.name, value) for value in NO_FLAG]
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_values(name):
    function = FUNCTIONS[name]
    if name.startswith("_apply") or name == "kernelize":
        hotswap.liger.restore_classes()
    for parameter, value in wrong_of(function):
        with pytest.raises((TypeError, ValueError), match="(?s)expected .*; ?got .*") as error:
            function(**{**right(name, function), parameter: value})
        assert "NoneType' object" not in str(error.value), (parameter, value)


def test_positional_values_are_looked_at_too():
    for call in (lambda: hotswap.kernelize(3), lambda: hotswap.report("llama"), lambda: hotswap.unkernelize(None), lambda: hotswap.load(3)):
        with pytest.raises(TypeError, match="expected (model|name) as .*; got .*; "):
            call()


def test_an_error_changes_nothing():
    m = model()
    with pytest.raises(TypeError, match=r"kernelize: expected rms_norm as True or False; got 'no' \(str\)"):
        hotswap.kernelize(m, rms_norm="no")
    assert "_hotswap_chosen" not in m.__dict__ and not any("_hotswap" in part.__dict__ for part in m.modules())
